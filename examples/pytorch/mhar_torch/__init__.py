# SPDX-License-Identifier: Apache-2.0
"""Depth routing for PyTorch: one routing call, and the routing of a whole model, as differentiable
operators on CPU and CUDA tensors."""
from mhar_torch.operators import route
from mhar_torch.norm import rms_norm
from mhar_torch.router import Router

__all__ = ["Router", "rms_norm", "route"]
