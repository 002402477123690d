# SPDX-License-Identifier: GPL-3.0-or-later
"""How members of a job that know no inventory find each other, start together and end together.

One member is the launcher; the others know its address and a secret. From below:

- ``roster``: the members and their ranks;
- ``fabric``: the interface that a job's libraries should use;
- ``hosts_file``: members' names in /etc/hosts;
- ``command``: what a member runs;
- ``transports``: messages through the control connection or, under Slurm, through shared files;
- ``meeting``: the messages between launcher and workers, and what each does with them;
- ``record``: the job's directory;
- ``workers``: the launcher starts the workers from a template;
- ``run``: a member from its start to its end.
"""
