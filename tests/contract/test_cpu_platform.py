"""The CPU platform, its device module and the stand-ins for CUDA, in this process."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from megatron_agent.backend.cpu import cuda_standins, device
from megatron_agent.backend.cpu import platform as cpu_platform
from megatron_agent.backend.cpu.cuda_standins import cuda_means_cpu
from megatron_agent.errors import HookError

pytestmark = [pytest.mark.contract, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("value", "is_cpu"), [("cpu", True), (" CPU ", True), ("nvidia", False), ("huawei", False)]
)
def test_the_environment_variable_decides(
    monkeypatch: pytest.MonkeyPatch, value: str, is_cpu: bool
) -> None:
    monkeypatch.setenv("VERL_PLATFORM", value)
    assert cpu_platform.is_cpu_platform() is is_cpu


@pytest.mark.parametrize("other_present", [True, False])
def test_without_the_variable_the_cpu_is_chosen_when_nothing_else_is_there(
    monkeypatch: pytest.MonkeyPatch, other_present: bool
) -> None:
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    monkeypatch.setattr(cpu_platform, "other_platform_present", lambda: other_present)
    assert cpu_platform.is_cpu_platform() is not other_present


def test_a_gpu_that_only_nvidia_smi_sees_is_another_platform(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    monkeypatch.setattr(PlatformCUDA, "is_platform_available", lambda self, use_smi_check: True)
    assert cpu_platform.other_platform_present.__wrapped__() is True


def test_platform_lets_ray_count_ranks_as_gpus() -> None:
    platform = cpu_platform.PlatformCPU()
    assert platform.ray_resource_options(1) == {"num_gpus": 1}
    assert platform.visible_devices_envvar() == "CUDA_VISIBLE_DEVICES"


def test_only_the_doubled_backend_string_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda backend=None, **kwargs: calls.append((backend, kwargs)),
    )
    cpu_platform.accept_gloo_named_twice()
    cpu_platform.accept_gloo_named_twice()
    torch.distributed.init_process_group("cpu:gloo,cpu:gloo", rank=0)
    torch.distributed.init_process_group(backend="cpu:gloo")
    torch.distributed.init_process_group()
    assert calls == [("gloo", {"rank": 0}), ("cpu:gloo", {}), (None, {})]


def test_device_module_has_every_name_that_stands_in_for_torch_cuda() -> None:
    for name in cuda_standins.REPLACED_IN_TORCH_CUDA:
        ours, theirs = getattr(device, name), getattr(torch.cuda, name)
        assert isinstance(ours, type) == isinstance(theirs, type)


def test_pinning_memory_is_possible_where_there_is_nothing_to_pin_it_for() -> None:
    cuda_standins.install()
    tensor = torch.ones(2)
    assert tensor.pin_memory() is tensor


def test_device_module_reports_the_memory_of_the_process() -> None:
    free, total = device.mem_get_info()
    assert 0 < free <= total
    assert 0 < device.memory_allocated() <= total
    assert device.max_memory_allocated() > 50 * 2**20


def test_device_module_saves_and_restores_the_generator() -> None:
    state = device.get_rng_state()
    first = torch.rand(3)
    device.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def test_streams_and_events_are_always_finished() -> None:
    stream = device.current_stream()
    with device.stream(stream), stream:
        event = stream.record_event()
    stream.wait_stream(device.default_stream())
    stream.wait_event(event)
    assert stream.query() and event.query()
    assert event.elapsed_time(event) == 0.0


def test_in_the_context_cuda_means_cpu() -> None:
    with cuda_means_cpu():
        assert torch.zeros(1, device="cuda").device.type == "cpu"
        assert torch.tensor([1], device=torch.device("cuda", 0)).device.type == "cpu"
        assert torch.zeros(1).to("cuda:0").device.type == "cpu"
        assert torch.zeros(1).to(device="cuda").device.type == "cpu"
        tensor = torch.zeros(1)
        assert tensor.cuda() is tensor
        assert torch.nn.Linear(1, 1).cuda().weight.device.type == "cpu"
        assert tensor.type() == "torch.cuda.FloatTensor"
        assert tensor.type(torch.float64).dtype == torch.float64


def test_outside_the_context_cuda_means_cuda() -> None:
    with cuda_means_cpu():
        pass
    assert torch.zeros(1).type() == "torch.FloatTensor"


def test_install_refuses_to_hide_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_standins, "_installed", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(HookError, match=r"sees a GPU.*Unset VERL_PLATFORM"):
        cuda_standins.install()


def test_a_megatron_without_the_private_functions_is_named() -> None:
    with pytest.raises(HookError, match=r"tensor_parallel.random has no _get_cuda_rng_state"):
        cuda_standins._use_cpu_generator(types.ModuleType("other_version"))
