"""Nodes that are only a small file each, to measure Ansible's cost on the controller."""
