# SPDX-License-Identifier: GPL-3.0-or-later
"""The rendezvous: members of a job without an inventory find each other, start together and end together.

One member is the launcher; the others know its address and a secret. The modules, from the bottom up:

- ``roster``: the members and their ranks;
- ``fabric``: the interface that a job's libraries should use;
- ``hosts_file``: members' names in /etc/hosts;
- ``command``: the command that a member runs;
- ``transports``: messages through the control connection or, under Slurm, through shared files;
- ``meeting``: the messages between launcher and workers, and how each handles them;
- ``record``: the job's directory;
- ``workers``: the launcher starts the workers from a template;
- ``run``: a member from its start to its end.
"""
