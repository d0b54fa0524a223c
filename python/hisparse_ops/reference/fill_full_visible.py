from torch import Tensor


def fill_full_visible(table: Tensor) -> None:
    for visible in range(table.shape[0]):
        for column in range(table.shape[1]):
            table[visible, column] = column if column < visible else -1
