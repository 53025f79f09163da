"""The operator writes nothing unless the API server forbids it what it does not need."""

from __future__ import annotations

from precision_operator.errors import Forbidden, KubeError, Unavailable, Unfenced
from precision_operator.kube.port import PODS
from precision_operator.shell.fence import AGAIN_SECONDS, PODS_TRIED, Fence
from tests.support import objects as b
from tests.support.server import Server
from tests.unit.runtime.manual_clock import ManualClock

POD = [("default", "train-abc-1")]


def rig(*, required: bool = True) -> tuple[Server, Fence, ManualClock]:
    kube, clock = Server(), ManualClock()
    kube.put(PODS, b.pod())
    return kube, Fence(kube, clock, required=required), clock


async def test_what_is_forbidden_is_tried_as_dry_runs_and_again_in_time() -> None:
    kube, fence, clock = rig()
    for _ in range(3):
        assert await fence.check(POD) is None
    assert kube.reads == [("dry-run", "pods", "train-abc-1")]
    assert (kube.grace, kube.writes) == ([0], [])
    await clock.advance(AGAIN_SECONDS)
    kube.fenced = False
    assert isinstance(await fence.check(POD), Unfenced)


async def test_without_the_fence_nothing_may_be_written_and_it_is_tried_again_at_once() -> None:
    kube, fence, _ = rig()
    kube.fenced = False
    unfenced = await fence.check(POD)
    assert isinstance(unfenced, Unfenced)
    assert "change a pod's labels" in str(unfenced)
    assert "manifests/admission/fence.yaml" in str(unfenced)
    kube.fenced = True
    assert await fence.check(POD) is None


async def test_half_a_fence_is_none() -> None:
    kube, clock = Server(), ManualClock()
    kube.put(PODS, b.pod())

    class Half(Server):
        async def delete(self, *_: object, **__: object) -> None:
            return

    half = Half()
    half.objects = kube.objects
    unfenced = await Fence(half, clock).check(POD)
    assert "kill a pod without grace" in str(unfenced)


async def test_a_missing_right_is_no_fence_nor_is_an_api_server_that_is_away() -> None:
    for error in (Forbidden("pods is forbidden: RBAC", status=403), Unavailable("away"), KubeError("400")):
        kube, clock = Server(), ManualClock()
        kube.put(PODS, b.pod(name="precision-fence"))

        def refuse(body: object, error: KubeError = error) -> None:
            raise error

        kube.answer = refuse  # type: ignore[assignment]
        unfenced = await Fence(kube, clock).check([("default", "precision-fence")])
        assert isinstance(unfenced, Unfenced)
        assert str(error) in str(unfenced)


async def test_a_name_cannot_pass_for_a_denial() -> None:
    kube, clock = Server(), ManualClock()
    kube.put(PODS, b.pod(name="precision-fence"))

    def refuse(body: object) -> None:
        raise Unavailable("PATCH /api/v1/namespaces/precision-fence/pods/precision-fence: 503")

    kube.answer = refuse  # type: ignore[assignment]
    assert isinstance(await Fence(kube, clock).check([("default", "precision-fence")]), Unfenced)


async def test_pods_that_are_gone_prove_nothing() -> None:
    kube, fence, _ = rig()
    kube.fenced = False
    gone = [("default", f"gone-{number}") for number in range(100)]
    assert isinstance(await fence.check([*gone[:2], *POD]), Unfenced)
    kube.fenced = True
    assert await Fence(kube, ManualClock()).check([*gone[:2], *POD]) is None
    kube.reads.clear()
    unfenced = await Fence(kube, ManualClock()).check(gone)
    assert isinstance(unfenced, Unfenced)
    assert "gone" in str(unfenced)
    assert len(kube.reads) == PODS_TRIED


async def test_a_person_may_do_without_for_development() -> None:
    kube, fence, _ = rig(required=False)
    kube.fenced = False
    assert await fence.check(POD) is None
    assert kube.reads == []
