"""Nodes that exist only as a small file each, for measuring what Ansible costs on the controller."""
