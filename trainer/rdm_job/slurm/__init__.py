# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs through Slurm: one sbatch script per job, and agents that srun starts on the nodes that Slurm gives.

``script``, ``container``, ``states``, ``reasons``, ``limits``, ``rest_forms`` and ``view`` decide and are
pure; ``commands`` runs Slurm's programs, and ``rest`` asks slurmrestd the same, with a ``token``; ``verbs``
is what the login host is asked, and ``step`` what runs on the nodes, which ``image`` has run in an image.
``docker_archive`` reads what that may be made of.
"""
