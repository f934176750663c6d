# SPDX-License-Identifier: Apache-2.0
"""Depth routing for PyTorch: one routing call as a differentiable operator on CPU tensors."""
from mhar_torch.operators import route

__all__ = ["route"]
