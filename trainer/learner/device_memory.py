"""What a learner, critic or reference holds in a device's memory, and how it leaves the device between steps.

Tensors are moved in place: parameters stay the same objects, so that optimisers, tied weights, adapters and float32
copies go on to belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

_HOME = torch.device("cpu")


def transferred(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` on ``device``; itself where it is there."""
    return tensor.to(device)


class DeviceMemory:
    """The tensors of modules, of further parameters (float32 copies of weights), and of optimisers' states."""

    def __init__(
        self,
        device: torch.device,
        modules: Sequence[torch.nn.Module],
        values: Iterable[torch.nn.Parameter] = (),
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        self.device = device
        """Where they are used."""
        self._modules, self._values, self._optimizers = modules, tuple(values), optimizers

    def offload(self) -> None:
        """Give the device's memory back: everything goes to the CPU's, gradients are dropped."""
        self._move(_HOME)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # else the allocator keeps it from other processes

    def reload(self) -> None:
        """Bring everything back after :meth:`offload`."""
        self._move(self.device)

    def move(self, device: torch.device) -> None:
        """Use another device from now on."""
        self.device = device
        self.reload()

    @torch.no_grad()
    def _move(self, device: torch.device) -> None:
        moved: dict[object, tuple[torch.Tensor, torch.Tensor]] = {}  # the first keeps its address from being reused

        def there(tensor: torch.Tensor) -> torch.Tensor:
            """The moved tensor; the same one for tensors that share memory."""
            place = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
            if tensor.numel() == 0:
                return transferred(tensor, device)
            return moved.setdefault(place, (tensor, transferred(tensor, device)))[1]

        parameters = {id(p): p for module in self._modules for p in module.parameters()}
        for parameter in (parameters | {id(value): value for value in self._values}).values():
            parameter.grad = None
            parameter.data = there(parameter.data)
        modules = {id(each): each for root in self._modules for each in root.modules()}
        for module in modules.values():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = there(buffer)
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                # Counts of steps are on the CPU wherever the weights are.
                state.update({k: there(v) for k, v in state.items() if torch.is_tensor(v) and v.ndim})
