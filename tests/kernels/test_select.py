import pytest
from headstart_kernels.select import select_backend


def test_auto_is_the_reference() -> None:
    assert select_backend("auto") == "reference"


def test_a_backend_that_is_not_built_in_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="flashinfer"):
        select_backend("flashinfer")
