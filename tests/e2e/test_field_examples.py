"""The examples of single fields run, and show what they say."""

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import jarilab

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
TRANSFORMERS = [
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="NO transformers: an example was NOT run (pip install 'jarilab[huggingface]')",
    ),
    pytest.mark.filterwarnings("ignore"),  # of other libraries while they are imported
]


def example(name):
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def drawn(name, folder):
    """The module of an example, and what its `main` returns; it must write a figure."""
    pytest.importorskip("matplotlib", reason="NO matplotlib: an example was NOT run")
    module, file = example(name), folder / "figure.png"
    result = module.main(str(file))
    assert file.stat().st_size > 1000
    return module, result


@pytest.mark.slow
def test_a_watched_head_becomes_a_previous_token_head(tmp_path):
    pytest.importorskip("tensorboard", reason="NO tensorboard: a watched training was NOT run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    example("watch_training").main(str(tmp_path))
    read = EventAccumulator(str(tmp_path)).Reload()
    for head in (0, 1):
        previous = read.Scalars(f"measures, previous/encoder.0:{head}")
        assert [event.step for event in previous] == list(range(0, 301, 50))
        assert previous[0].value < 0.2
        assert previous[-1].value > 0.8


class TestSpeech:
    pytestmark = TRANSFORMERS

    def test_hypotheses_have_times(self):
        timed = example("words_to_time").main()
        assert len(timed) == 2
        for words in timed:
            assert words[0].start == 0
            assert words[-1].end == pytest.approx(1)
            assert all(word.start <= word.end for word in words)


class TestImageWords:
    pytestmark = TRANSFORMERS

    def test_maps_are_those_that_the_model_returns(self, tmp_path):
        module, (answer, maps) = drawn("image_words", tmp_path)
        model = module.small_model()
        model.set_attn_implementation("eager")
        pixels = torch.zeros(1, 3, 32, 32)
        pixels[..., 8:16, 16:24] = 1.0
        with torch.no_grad():
            output = model(input_ids=answer[:, :-1], pixel_values=pixels, output_attentions=True)
        mean = torch.cat(output.attentions).mean((0, 1))
        # 21 tokens of the prompt, the image at 2 to 17; row 20 writes the first word.
        assert torch.allclose(maps.flatten(1), mean[20:24, 2:18], atol=1e-6)

    def test_image_tokens_go_through_the_image_row_by_row(self):
        model = example("image_words").small_model()
        pixels, changed = torch.zeros(2, 3, 32, 32), torch.zeros(16)
        for index in range(16):
            row, column = divmod(index, 4)
            pixels[1] = 0
            pixels[1, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 1.0
            with torch.no_grad():
                features = model.get_image_features(pixel_values=pixels).pooler_output
            changed[index] = (features[1] - features[0]).norm(dim=-1).argmax()
        assert changed.tolist() == list(range(16))

    def test_the_grid_of_qwen_follows_the_image(self):
        import transformers

        torch.manual_seed(0)
        rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.Qwen2VLConfig(
            text_config={"vocab_size": 99, "rope_parameters": rope, "num_key_value_heads": 2, **sizes},
            vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 4},
            image_token_id=90, vision_start_token_id=91, vision_end_token_id=92, video_token_id=93,
        )  # fmt: skip
        model = transformers.Qwen2VLForConditionalGeneration(config).eval()
        grid = torch.tensor([[1, 8, 12]])
        prompt = torch.tensor([[1, 5, 91, *[90] * 24, 92, 7]])
        image = {"pixel_values": torch.randn(96, 96), "image_grid_thw": grid, "mm_token_type_ids": (prompt == 90).int()}
        with jarilab.record(model) as tape:
            answer = model.generate(input_ids=prompt, max_new_tokens=3, do_sample=False, **image)
        rows, columns = (grid[0, 1:] // config.vision_config.spatial_merge_size).tolist()
        maps = example("image_words").word_maps(tape.merged_steps(), answer[0], 29, (rows, columns))
        assert maps.shape == (3, 4, 6)
        model.set_attn_implementation("eager")
        image["mm_token_type_ids"] = (answer[:, :-1] == 90).int()
        with torch.no_grad():
            output = model(input_ids=answer[:, :-1], output_attentions=True, **image)
        mean = torch.cat(output.attentions).mean((0, 1))
        assert torch.allclose(maps.flatten(1), mean[28:31, 3:27], atol=1e-6)


@pytest.fixture(scope="class")
def diffusion():
    pytest.importorskip("diffusers", reason="NO diffusers: maps of diffusion models were NOT compared")
    return example("diffusion_words")


@pytest.mark.filterwarnings("ignore")
class TestDiffusion:
    def maps_by_hand(self, model, steps, monkeypatch):
        """The softmax of every call of a fused attention, computed where it is called."""
        fused, maps = torch.nn.functional.scaled_dot_product_attention, []

        def attend(query, key, value, *arguments, **options):
            scores = query.double() @ key.double().transpose(-1, -2) / query.shape[-1] ** 0.5
            maps.append(torch.softmax(scores, -1))
            return fused(query, key, value, *arguments, **options)

        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
            for step in steps:
                model(**step)
        return maps

    @pytest.mark.parametrize(
        ("name", "is_read", "image", "words", "shape"),
        [
            ("unet", lambda map: map.shape[-1] == 5, slice(None), slice(None), (8, 12)),
            ("sd3", lambda map: True, slice(0, 24), slice(24, 29), (4, 6)),
            ("flux", lambda map: True, slice(5, 101), slice(0, 5), (8, 12)),
        ],
    )
    def test_maps_are_the_means_of_all_calls(self, diffusion, monkeypatch, name, is_read, image, words, shape):
        torch.manual_seed(1)
        model, steps = getattr(diffusion, name)()
        calls = [map for map in self.maps_by_hand(model, steps, monkeypatch) if is_read(map)]
        tape = diffusion.recorded(model, steps)
        sites = tape.sites_of("cross") if name == "unet" else tape.sites
        assert len(calls) == len(sites) * len(steps)
        maps = diffusion.word_maps(tape, sites, shape, (64, 96), image=image, words=words)
        assert maps.shape == (5, 64, 96)
        expected = np.zeros((5, 64, 96))
        for call in calls:
            weights = call[-1].mean(0)[image, words].numpy()
            scale = int((shape[0] * shape[1] / len(weights)) ** 0.5)
            small = weights.T.reshape(5, shape[0] // scale, shape[1] // scale)
            expected += np.stack([self.enlarged(one, (64, 96)) for one in small]) / len(calls)
        assert np.allclose(maps.numpy(), expected, atol=1e-6)

    @staticmethod
    def enlarged(map, size):
        """Linear between the middles of the cells."""
        for axis, count in enumerate(size):
            middles = (np.arange(map.shape[axis]) + 0.5) * count / map.shape[axis] - 0.5
            lines = np.moveaxis(map, axis, -1)
            lines = np.stack([np.interp(np.arange(count), middles, line) for line in lines])
            map = np.moveaxis(lines, -1, axis)
        return map

    @pytest.mark.parametrize(("name", "first"), [("sd3", 24), ("flux", 0)])
    def test_words_are_where_the_example_says(self, diffusion, name, first):
        torch.manual_seed(1)
        model, steps = getattr(diffusion, name)()
        before = diffusion.recorded(model, steps[:1])
        steps[0]["encoder_hidden_states"][0, 3] += 1
        after = diffusion.recorded(model, steps[:1])
        site = before.sites[0]
        changed = after.recorded(site).call.k != before.recorded(site).call.k
        assert changed[0].any(0).any(-1).nonzero().flatten().tolist() == [first + 3]

    def test_a_shape_that_does_not_fit_is_refused(self, diffusion):
        with pytest.raises(ValueError, match="96 pixels are no halving of"):
            diffusion.grid_of(96, (9, 9))

    def test_the_example_runs(self, diffusion, tmp_path):
        _, maps = drawn("diffusion_words", tmp_path)
        assert {name: tuple(one.shape) for name, one in maps.items()} == dict.fromkeys(
            ("UNet", "SD3", "Flux"), (5, 64, 96)
        )
        # All weights of a cross-attention are on words.
        assert torch.allclose(maps["UNet"].sum(0), torch.ones(()), atol=1e-5)


class TestSwin:
    pytestmark = TRANSFORMERS

    def test_rollout_is_what_a_linear_network_of_windows_computes(self, tmp_path):
        from transformers.models.swin.modeling_swin import window_partition, window_reverse

        module, (maps, rollout) = drawn("swin_windows", tmp_path)
        assert [grid for grid, _ in maps] == [(11, 15), (11, 15), (6, 8), (6, 8)]
        model = module.small_model()
        pixels = torch.rand(1, 3, *module.IMAGE, generator=torch.Generator().manual_seed(1))
        with torch.no_grad(), jarilab.record(model) as tape:
            model(pixel_values=pixels)
        # Every patch is a channel, which each layer mixes.
        mixed = torch.eye(11 * 15).view(11, 15, -1)
        for number, site in enumerate(tape.sites):
            if number == 2:
                mixed = torch.nn.functional.avg_pool2d(mixed.permute(2, 0, 1), 2, ceil_mode=True).permute(1, 2, 0)
            rows, columns, _ = mixed.shape
            shift = 2 * (number % 2)
            padded = torch.nn.functional.pad(mixed, (0, 0, 0, -columns % 4, 0, -rows % 4)).roll(
                (-shift, -shift), (0, 1)
            )
            windows = window_partition(padded[None], 4).flatten(1, 2)
            moved = (tape.weights(site).mean(1) @ windows).unflatten(1, (4, 4))
            back = window_reverse(moved, 4, *padded.shape[:2])[0].roll((shift, shift), (0, 1))[:rows, :columns]
            mixed = (mixed + back) / 2
        assert torch.allclose(rollout, mixed.flatten(0, 1), atol=1e-6)


class TestDeformable:
    pytestmark = TRANSFORMERS

    def test_cells_have_the_weights_by_which_the_module_moves_values(self, tmp_path):
        module, samplings = drawn("deformable_points", tmp_path)
        model = module.small_model()
        paths = {path for path, each in model.named_modules() if type(each).__name__ == "MultiScaleDeformableAttention"}
        assert len(paths) == 4
        assert set(samplings) == paths
        for path, sampling in samplings.items():
            shapes, cells = sampling.shapes, sum(rows * columns for rows, columns in sampling.shapes)
            # The value of each cell is a direction of its own, so that the output has the weight of each cell.
            values = torch.eye(cells)[None, :, None].expand(-1, -1, 4, -1)
            output = model.get_submodule(path)(
                values, torch.tensor(shapes), shapes, None, sampling.locations, sampling.weights, 64
            )
            expected = output.unflatten(2, (4, cells)).transpose(1, 2)
            dense = torch.cat([map.flatten(-2) for map in module.weights_on_cells(sampling)], -1)
            assert torch.allclose(dense, expected, atol=1e-6)
            assert torch.allclose(sampling.weights.sum((-1, -2)), torch.ones(()), atol=1e-5)

    def test_the_recorder_names_what_it_cannot_record(self):
        model = example("deformable_points").small_model()
        with torch.no_grad(), jarilab.record(model) as tape:
            model(pixel_values=torch.rand(1, 3, 64, 96))
        assert "encoder.layers.0.self_attn" in tape.missing
