"""Fills what Python gets, at most 250 MB, and checks all of it; where there is no more, it makes do."""

blocks = []
try:
    for i in range(250):
        blocks.append(bytearray([i % 251]) * 1_000_000)
except MemoryError:
    # Python itself needs some to go on.
    del blocks[-8:]
for _ in range(3):
    for i, block in enumerate(blocks):
        assert block[0] == block[500_000] == block[999_999] == i % 251, i
print("good")
