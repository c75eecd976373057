"""The client of the code-reward service, as a sandbox: ``make_sandbox("remote", url=...)``."""

from sandboxes.client.remote import RemoteSandbox, RemoteSession

__all__ = ["RemoteSandbox", "RemoteSession"]
