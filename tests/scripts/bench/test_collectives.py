"""`pageant bench collectives`, in small: two processes sum by shared memory and by Gloo."""

from pageant.scripts.bench.collectives import measure


def test_every_measurement_gives_a_figure():
    found = measure(2, ((1, 64), (40, 512)), idle_seconds=0.1, batches=1)
    for kind in ("shm", "gloo"):
        for shape in ("1x64", "40x512"):
            for dtype in ("float32", "bfloat16"):
                assert 0 < found["seconds"][kind][shape][dtype]["least"] < 1
    assert found["seconds"]["memcpy"]["40x512"]["median"] > 0
    assert 0 <= found["idle_share"] < 1
