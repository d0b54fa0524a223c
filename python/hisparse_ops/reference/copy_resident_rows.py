from torch import Tensor

from hisparse_ops.reference._rows import num_rows, row


def copy_resident_rows(source: Tensor, row_ids: Tensor, staging: Tensor, *, invalid: str) -> None:
    for i, index in enumerate(row_ids.tolist()):
        if 0 <= index < num_rows(source):
            row(staging, i).copy_(row(source, index))
        elif invalid == "row0":
            row(staging, i).copy_(row(source, 0))
