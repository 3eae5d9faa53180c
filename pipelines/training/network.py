"""The network of P(accept): a few small MLPs with a linear shortcut, averaged; normalisation and calibration inside.

All of it is one graph from raw column-program outputs to a calibrated probability, so a server needs nothing but the
ONNX file. Averaging happens on logits. Read `trainer.py` next for how it is fitted.

Shape legend: N rows, F inputs, M members, H hidden units.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

CLIP: Final = 6.0  # standard deviations; a wild input then moves the answer no further than an extreme one
ONNX_OPSET: Final = 17


class AcceptNetwork(nn.Module):
    """P(accept) from raw inputs: x (N, F) float32 -> p (N,) float32 in (0, 1)."""

    mean_F: Tensor
    scale_F: Tensor
    platt: Tensor

    def __init__(self, num_inputs: int, hidden: Sequence[int], members: int) -> None:
        super().__init__()
        self.register_buffer("mean_F", torch.zeros(num_inputs))
        self.register_buffer("scale_F", torch.ones(num_inputs))
        self.register_buffer("platt", torch.tensor([1.0, 0.0]))  # slope and shift on the logit
        self.shortcut = nn.Linear(num_inputs, 1)
        widths = [num_inputs, *hidden, 1]
        self.weights = nn.ParameterList(_drawn(members, a, b) for a, b in pairwise(widths))
        self.biases = nn.ParameterList(torch.zeros(members, 1, b) for b in widths[1:])
        with torch.no_grad():
            self.weights[-1].mul_(0.1)  # start near the shortcut: the interactions are learned, not unlearned

    def set_normalisation(self, x_NF: NDArray[np.float32]) -> None:
        """Take mean and deviation from the training rows; a constant input gets scale 1 and so says nothing."""
        x = x_NF.astype(np.float64)
        deviation = x.std(axis=0)
        constant = deviation <= 1e-9 * np.maximum(1.0, np.abs(x.mean(axis=0)))
        self.mean_F.copy_(torch.from_numpy(x.mean(axis=0)).float())
        self.scale_F.copy_(torch.from_numpy(np.where(constant, 1.0, deviation)).float())

    def set_calibration(self, slope: float, shift: float) -> None:
        self.platt.copy_(torch.tensor([slope, shift]))

    def normalised(self, x_NF: Tensor) -> Tensor:
        return torch.clamp((x_NF - self.mean_F) / self.scale_F, -CLIP, CLIP)

    def member_logits(self, x_NF: Tensor) -> Tensor:
        """Raw logit of each member: (M, N). Each member is fitted on its own loss, so that they differ."""
        z_NF = self.normalised(x_NF)
        h_MNH = z_NF
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h_MNH = torch.matmul(h_MNH, weight) + bias
            if layer < len(self.weights) - 1:
                h_MNH = torch.relu(h_MNH)
        return (h_MNH + self.shortcut(z_NF)).squeeze(-1)

    def logits(self, x_NF: Tensor) -> Tensor:
        """Raw logit before calibration: (N,)."""
        return self.member_logits(x_NF).mean(dim=0)

    def forward(self, x_NF: Tensor) -> Tensor:
        return torch.sigmoid(self.logits(x_NF) * self.platt[0] + self.platt[1])


def _drawn(members: int, width_in: int, width_out: int) -> Tensor:
    """First weights of one layer of every member: (M, in, out), variance 2 / in as suits ReLU."""
    return torch.randn(members, width_in, width_out) * (2.0 / width_in) ** 0.5


def predict(network: AcceptNetwork, x_NF: NDArray[np.float32], *, rows_at_once: int = 65_536) -> NDArray[np.float64]:
    """Calibrated probabilities of many rows: (N,) float64."""
    network.eval()
    with torch.no_grad():
        parts = [network(torch.from_numpy(x_NF[i : i + rows_at_once])) for i in range(0, len(x_NF), rows_at_once)]
    return torch.cat(parts).double().numpy() if parts else np.zeros(0)


def weights_of(network: AcceptNetwork) -> dict[str, NDArray[np.float32]]:
    """All weights and buffers by name, in the module's fixed order."""
    return {name: value.detach().numpy().copy() for name, value in network.state_dict().items()}


def to_onnx(network: AcceptNetwork) -> bytes:
    """The network as ONNX bytes: input "x" float32 (N, F), output "p" float32 (N,); N is free.

    torch 2.11: the exporter that is the default needs onnxscript; the older one (dynamo=False) writes the same bytes
    for the same weights, and warns that it will go.
    """
    import onnx

    network.eval()
    example = torch.zeros(2, network.mean_F.shape[0])
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network, (example,), buffer,  # type: ignore[arg-type]  # torch 2.11's hint forgets buffers
            dynamo=False, opset_version=ONNX_OPSET, input_names=["x"], output_names=["p"], dynamic_axes={"x": {0: "N"}, "p": {0: "N"}},
        )  # fmt: skip
    onnx.checker.check_model(onnx.load_from_string(buffer.getvalue()), full_check=True)
    return buffer.getvalue()
