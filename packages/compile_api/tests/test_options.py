"""Options reach the package that has them, and only as the type they have there."""

import pytest
import torch

import compile_api
from compile_api import errors, options


def test_defaults_are_the_packages_own(monkeypatch):
    monkeypatch.delenv("COMPILE_API_STRICT", raising=False)
    settings = options.resolve(None, None)
    assert settings.aot_autograd == type(settings.aot_autograd)()
    assert settings.inductor == type(settings.inductor)()
    assert settings.dynamo == type(settings.dynamo)()
    assert not settings.facade.strict


def test_strict_by_environment_reaches_every_package_that_has_it(monkeypatch):
    monkeypatch.setenv("COMPILE_API_STRICT", "1")
    settings = options.resolve(None, None)
    rooms = [getattr(settings, room) for room in ("facade", "dynamo", "aot_autograd", "inductor")]
    assert settings.facade.strict
    assert all(room.strict for room in rooms if hasattr(room, "strict"))
    assert not options.resolve(None, {"facade.strict": False}).facade.strict


def test_a_plain_name_reaches_all_and_a_qualified_one_its_package():
    assert (
        options.resolve(
            None, {"activation_memory_budget": 0.5}
        ).aot_autograd.activation_memory_budget
        == 0.5
    )
    whole = options.resolve(None, {"aot_autograd.activation_memory_budget": 0})
    assert whole.aot_autograd.activation_memory_budget == 0.0
    assert isinstance(whole.aot_autograd.activation_memory_budget, float)


def test_settings_are_a_key():
    first = options.resolve(None, {"activation_memory_budget": 0.5})
    assert hash(first) == hash(options.resolve(None, {"activation_memory_budget": 0.5}))
    assert first != options.resolve(None, None)


def test_every_option_is_listed_with_package_and_meaning():
    listed = compile_api.list_options()
    assert listed["activation_memory_budget"].startswith("aot_autograd, default 1.0: ")
    assert all("default" in text for text in listed.values())


@pytest.mark.parametrize(
    "mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
def test_every_mode_resolves(mode):
    options.resolve(mode, None)
    assert isinstance(compile_api.list_mode_options(mode), dict)
    assert mode in compile_api.list_mode_options()


@pytest.mark.parametrize("value", [True, "1", None])
def test_a_float_takes_numbers_only(value):
    with pytest.raises(errors.InvalidOption):
        options.resolve(None, {"activation_memory_budget": value})


def test_decompositions_are_the_users():
    """A table, or a plain mapping, reaches the tracing; anything else is refused by name."""
    import torch

    import compile_api
    from primtorch import decomposition_table
    from primtorch.errors import RegistrationError

    gelu = torch.ops.aten.gelu.default

    def doubled(x, *, approximate="none"):
        return x * 2

    def function(x):
        return torch.nn.functional.gelu(x)

    x = torch.randn(8)
    table = decomposition_table("inductor").extended({gelu: doubled})
    for given in (table, dict(table)):
        for backend in ("inductor", "aot_eager_decomp"):
            compiled = compile_api.compile(
                function, backend=backend, options={"decompositions": given}
            )
            torch.testing.assert_close(compiled(x), x * 2)
    torch.testing.assert_close(compile_api.compile(function)(x), function(x))
    assert hash(options.resolve(None, {"decompositions": table})) is not None
    with pytest.raises(errors.InvalidOption):
        options.resolve(None, {"decompositions": 3})
    with pytest.raises(RegistrationError, match="overload"):
        options.resolve(None, {"decompositions": {torch.ops.aten.gelu: doubled}})


def test_verify_catches_wrong_metadata_of_a_decomposition():
    import torch

    import compile_api
    from primtorch import decomposition_table

    gelu = torch.ops.aten.gelu.default
    table = decomposition_table("inductor").extended({gelu: lambda x, **_: x.double()})
    options = {"decompositions": table, "verify": True, "strict": True}
    compiled = compile_api.compile(torch.nn.functional.gelu, options=options)
    with pytest.raises(Exception, match=r"aten.gelu.default .* expected torch.float32"):
        compiled(torch.randn(3))


def test_a_mode_asks_only_for_options_that_are_there(monkeypatch):
    monkeypatch.setitem(options._MODES, "default", {"from_the_future": 1, "fuse": True})
    assert compile_api.list_mode_options("default") == {"fuse": True}


def test_max_autotune_rounds_half_types_at_the_end_of_a_kernel_only():
    def f(x):
        return (x * 1.001 + 1) * 1.001 - x

    x = torch.randn(512, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    exact = f(x.double())
    plain = compile_api.compile(f)(x)
    tuned = compile_api.compile(f, mode="max-autotune-no-cudagraphs")(x)
    assert torch.equal(plain, f(x))
    assert (tuned.double() - exact).abs().mean() < (plain.double() - exact).abs().mean()
