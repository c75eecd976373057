"""The Docker backend: programs in warm containers, through the SDK of the optional part ``docker``."""

from sandboxes.docker.sandbox import DockerSandbox

__all__ = ["DockerSandbox"]
