"""A training script as it should be: whatever starts workers stands behind the main guard."""

import argparse
from itertools import islice

import torch
from stdlib_corpus import PADDING, VOCABULARY, DocumentBatch, StdlibCorpus, collate_documents
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Bigram(nn.Module):
    """Predicts each token from the one before: ids (batch, length) to scores per token."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=PADDING)
        self.score = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of shape (batch, length, VOCABULARY)."""
        scores: Tensor = self.score(self.embed(tokens))
        return scores


def next_token_loss(model: Bigram, batch: DocumentBatch) -> Tensor:
    """Mean cross-entropy in nats a token; padding does not count."""
    scores = model(batch.tokens[:, :-1])
    targets = batch.tokens[:, 1:]
    return nn.functional.cross_entropy(
        scores.flatten(0, 1), targets.flatten(), ignore_index=PADDING
    )


def train(workers: int, steps: int) -> None:
    """Train for at most `steps` steps, or one epoch."""
    torch.manual_seed(0)
    corpus = StdlibCorpus(limit=64, max_tokens=64)
    loader = DataLoader(
        corpus, batch_size=8, shuffle=True, num_workers=workers, collate_fn=collate_documents
    )
    model = Bigram()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step, batch in enumerate(islice(loader, steps)):
        loss = next_token_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: {loss.item():.3f} nats a token")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--steps", type=int, default=8, help="training steps (default: 8)")
    options = parser.parse_args()
    train(options.workers, options.steps)


if __name__ == "__main__":
    main()
