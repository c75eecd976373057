"""Sandboxes: the local cage, Docker, the HTTP service and its client. Made by name: ``roll_envs.make_sandbox``."""
