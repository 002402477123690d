# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs through Slurm: one sbatch script per job, and agents that srun starts on the allocated nodes.

``script``, ``container``, ``states``, ``reasons``, ``limits``, ``rest_forms`` and ``view`` decide and are
pure. ``commands`` runs Slurm's programs, and ``rest`` does the same through slurmrestd, with a ``token``.
``verbs`` runs on the login host and ``step`` on the nodes, within an image through ``image``.
``docker_archive`` reads the archives from which images are made.
"""
