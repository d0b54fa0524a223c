from torch import Tensor

from hisparse_ops.reference._rows import num_rows, row


def copy_row_spans(sources: list[Tensor], destinations: list[Tensor], spans: Tensor) -> None:
    for source, destination in zip(sources, destinations, strict=True):
        for start, to, rows in spans.tolist():
            for index in range(num_rows(source)):  # a count may be far too long to step through
                target = to + index - start
                if start <= index < start + rows and 0 <= target < num_rows(destination):
                    row(destination, target).copy_(row(source, index))
