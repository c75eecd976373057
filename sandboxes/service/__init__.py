"""The code-reward service: a sandbox over HTTP, wire-compatible with SandboxFusion. ``roll-sandbox serve`` starts it.

``docs/sandbox_service.md`` describes it for its users. Nothing here is imported by the client except
:mod:`sandboxes.service.wire`, which needs no web library.
"""
