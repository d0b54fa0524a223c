from torch import Tensor

from hisparse_ops.reference._rows import row


def copy_pages(sources: list[Tensor], destinations: list[Tensor], page_pairs: Tensor) -> None:
    for source, destination in zip(sources, destinations, strict=True):
        block_size = source.shape[1]
        for page, to in page_pairs.tolist():
            if 1 <= page < len(source) and 1 <= to < len(destination):
                for offset in range(block_size):
                    row(destination, to * block_size + offset).copy_(
                        row(source, page * block_size + offset)
                    )
