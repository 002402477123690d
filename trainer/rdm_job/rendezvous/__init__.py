# SPDX-License-Identifier: GPL-3.0-or-later
"""How members of a job that know no inventory find each other, start together and end together.

One member is the launcher; the others know its address and a secret. From below:

- ``roster``: who takes part, and with which rank;
- ``fabric``: the interface that a job's libraries should use;
- ``hosts_file``: members' names in /etc/hosts;
- ``command``: what a member runs;
- ``transports``: what carries their messages: the control connection, or files that all see, under Slurm;
- ``meeting``: what launcher and workers say to each other;
- ``run``: a member from its start to its end.
"""
