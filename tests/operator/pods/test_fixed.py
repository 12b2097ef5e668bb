import contextlib

from headstart_operator.pods.fixed import StaticPods


async def test_fixed_endpoints_are_pods_by_address() -> None:
    async with contextlib.aclosing(StaticPods(["a:1", "b:2"]).follow()) as sets:
        assert {(ref.uid, ref.address, ref.is_ready) for ref in await anext(sets)} == {
            ("a:1", "a:1", True),
            ("b:2", "b:2", True),
        }
