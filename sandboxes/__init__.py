"""Sandboxes: local, Docker, the HTTP service and its client. Made by name with ``roll_envs.make_sandbox``."""
