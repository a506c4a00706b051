"""What fine-tuning minimises. Needs torch."""

from __future__ import annotations

import torch


def margin_contrastive(vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Margin-based contrastive loss of a batch (Zhou, Liu & Chen 2021).

    Pulls rows of one class together and pushes rows of other classes out to at least the largest
    distance found within a class, which is the margin for this batch.
    """
    gaps = (vectors[:, None] - vectors[None]).square().sum(dim=2)
    same = labels[:, None] == labels[None, :]
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positive, negative = (same & ~itself).to(gaps.dtype), (~same).to(gaps.dtype)
    margin = (gaps * positive).max()
    pull = (gaps * positive).sum(1) / positive.sum(1).clamp(min=1.0)
    push = ((margin - gaps).clamp(min=0.0) * negative).sum(1) / negative.sum(1).clamp(min=1.0)
    return (pull + push).mean() / vectors.shape[1]
