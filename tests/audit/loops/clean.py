"""Loops with nothing wrong, as people write them: the audit should find nothing wrong or suspect.

Each function is one loop. `CLEAN` lists them.
"""

import contextlib
import copy
import logging
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from tests.audit.loops.pieces import (
    BF16,
    CNN,
    FP16,
    LanguageModel,
    Tagger,
    amp,
    batches,
    mlp,
    training,
)

CLEAN = []


def clean(loop):
    CLEAN.append(loop)
    return loop


@clean
def fp32_with_evaluation_and_schedule():
    torch.manual_seed(0)
    model = CNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    for _ in range(2):
        model.train()
        total = 0.0
        for x, y in batches(images=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        schedule.step()
        model.eval()
        with torch.no_grad():
            sum((model(x).argmax(1) == y).sum().item() for x, y in batches(images=True))


@clean
def fp16_with_clipping():
    model, optimizer, scaler = training()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        for x, y in batches():
            optimizer.zero_grad(set_to_none=True)
            with amp():
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        schedule.step()


@clean
def accumulation_while_the_scale_grows():
    model, optimizer, scaler = training(init_scale=2.0**10, growth_interval=2)
    model.zero_grad()
    for i, (x, y) in enumerate(batches(batch=16)):
        with amp():
            loss = nn.CrossEntropyLoss()(model(x), y) / 4
        scaler.scale(loss).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            clip_grad_value_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            model.zero_grad()


@clean
def accumulation_averaged_by_hand():
    """Gradients, not losses, are divided by the number of micro-batches, before unscale_."""
    model, optimizer, scaler = training()
    for i, (x, y) in enumerate(batches(batch=16)):
        with amp():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if i % 4 == 3:
            for p in model.parameters():
                p.grad.div_(4)
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)


def _gan_parts():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32))
    critic = nn.Sequential(nn.Linear(32, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    optimizers = [torch.optim.Adam(m.parameters(), 2e-4) for m in (generator, critic)]
    return generator, critic, *optimizers


@clean
def gan_with_one_update():
    generator, critic, g_optimizer, d_optimizer = _gan_parts()
    scaler = torch.amp.GradScaler("cpu")
    criterion = nn.BCEWithLogitsLoss()
    for x, _ in batches():
        d_optimizer.zero_grad()
        with amp():
            fake = generator(torch.randn(len(x), 8))
            real_out, fake_out = critic(x), critic(fake.detach())
            d_loss = criterion(real_out, torch.ones_like(real_out))
            d_loss = d_loss + criterion(fake_out, torch.zeros_like(fake_out))
        scaler.scale(d_loss).backward()
        scaler.step(d_optimizer)
        g_optimizer.zero_grad()
        with amp():
            out = critic(fake)
            g_loss = criterion(out, torch.ones_like(out))
        scaler.scale(g_loss).backward()
        scaler.step(g_optimizer)
        scaler.update()


@clean
def gan_with_an_update_each():
    generator, critic, g_optimizer, d_optimizer = _gan_parts()
    scaler = torch.amp.GradScaler("cpu", growth_interval=3, init_scale=256.0)
    for x, _ in batches():
        with amp():
            fake = generator(torch.randn(len(x), 8)).detach()
            d_loss = F.softplus(critic(fake)).mean() + F.softplus(-critic(x)).mean()
        d_optimizer.zero_grad()
        scaler.scale(d_loss).backward()
        scaler.step(d_optimizer)
        scaler.update()
        with amp():
            g_loss = F.softplus(-critic(generator(torch.randn(len(x), 8)))).mean()
        g_optimizer.zero_grad()
        scaler.scale(g_loss).backward()
        scaler.step(g_optimizer)
        scaler.update()


@clean
def bf16_with_warm_up():
    torch.manual_seed(0)
    model = CNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 5))
    for x, y in batches(images=True):
        with amp(BF16):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


@clean
def one_loop_for_every_recipe():
    """A disabled scaler and a null context make one loop serve all (nanoGPT's way)."""
    for dtype in (torch.float32, BF16, FP16):
        model, optimizer, _ = training()
        scaler = torch.amp.GradScaler("cpu", enabled=dtype is FP16)
        context = contextlib.nullcontext() if dtype is torch.float32 else amp(dtype)
        for x, y in batches():
            with context:
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)


@clean
def lightning_fabric():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    model, optimizer = fabric.setup(model, optimizer)
    for x, y in fabric.setup_dataloaders(batches()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()


@clean
def lightning_trainer():
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = mlp()

        def training_step(self, batch, index):
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, index):
            self.log("loss", F.cross_entropy(self.model(batch[0]), batch[1]))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    quiet = dict(  # noqa: C408
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        precision="bf16-mixed",
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        **quiet,
    ).fit(Classifier(), batches(), batches())


@clean
def hugging_face_accelerate():
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=True, gradient_accumulation_steps=2)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, batches(), schedule)
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


@clean
def checkpointing_both_ways():
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        [nn.Sequential(nn.Linear(32, 32), nn.ReLU(inplace=True)) for _ in range(3)]
    )
    model = nn.ModuleList([blocks, nn.Linear(32, 3)])
    _, optimizer, scaler = training(model)
    for i, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        x.requires_grad_()
        with amp():
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=bool(i % 2))
            loss = F.cross_entropy(model[1](x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
@torch.backends.mkldnn.flags(enabled=False)  # oneDNN has no BF16 LSTM for CPUs without BF16 units
def lstm_in_bf16():
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    for _ in range(6):
        tokens = torch.randint(0, 50, (8, 12))
        tags = tokens % 5
        tags[:, -2:] = -100
        with amp(BF16):
            loss = criterion(model(tokens).view(-1, 5), tags.view(-1))
        optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()


@clean
def transformer_with_masks():
    model, optimizer, scaler = training(LanguageModel())
    for _ in range(6):
        tokens = torch.randint(1, 40, (4, 16))
        tokens[:, 12:] = 0
        with amp():
            logits = model(tokens)
            target = tokens[:, 1:].reshape(-1)
            loss = F.cross_entropy(logits[:, :-1].reshape(-1, 40), target, ignore_index=0)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        torch.stack(norms).norm().item()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@clean
def transformer_of_torch():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    head = nn.Linear(16, 3)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], 1e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(10)
    padding = torch.zeros(4, 10, dtype=torch.bool)
    padding[:, 7:] = True
    for _ in range(5):
        x = torch.randn(4, 10, 16)
        with amp(BF16):
            hidden = encoder(x, mask=mask, src_key_padding_mask=padding, is_causal=True)
            loss = head(hidden).float().logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    encoder.eval()
    with torch.inference_mode(), amp(BF16):
        head(encoder(torch.randn(4, 10, 16)))


@clean
def compiled():
    torch._dynamo.reset()
    model, optimizer, _ = training()
    model = torch.compile(model, backend="aot_eager")
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for x, y in batches():
        with amp(BF16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch._dynamo.reset()


@clean
def evaluation_and_average_in_between():
    model, optimizer, scaler = training(CNN())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    for _ in range(2):
        model.train()
        for x, y in batches(images=True, n=128):
            with amp():
                loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            average.update_parameters(model)
        model.eval()
        right = 0
        with torch.no_grad(), amp():
            for x, y in batches(images=True, n=128):
                right += (model(x).float().softmax(-1).argmax(1) == y).sum().item()
                average(x)


@clean
def save_and_resume():
    path = os.path.join(tempfile.mkdtemp(), "checkpoint.pt")

    def epoch(model, optimizer, scaler, schedule):
        for x, y in batches():
            with amp():
                loss = F.cross_entropy(model(x), y) * 100
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        schedule.step()

    def parts():
        model, optimizer, scaler = training()
        return model, optimizer, scaler, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    names = ("model", "optimizer", "scaler", "schedule")
    now = parts()
    epoch(*now)
    torch.save({k: p.state_dict() for k, p in zip(names, now, strict=True)} | {"epoch": 1}, path)
    stored, now = torch.load(path), parts()
    for name, part in zip(names, now, strict=True):
        part.load_state_dict(stored[name])
    epoch(*now)


@clean
def gradient_penalty():
    critic = nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 1))
    critic, optimizer, scaler = training(critic, init_scale=1024.0)
    for x, _ in batches():
        x.requires_grad_()
        with amp():
            out = critic(x)
        scaled = torch.autograd.grad(scaler.scale(out.float().sum()), x, create_graph=True)[0]
        grad = scaled * (1.0 / scaler.get_scale())
        with amp():
            penalty = ((grad.norm(2, dim=1) - 1) ** 2).mean()
            loss = out.float().mean() + 10 * penalty
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def half_inference():
    model = mlp().half().eval()
    with torch.inference_mode():
        model(torch.randn(4, 32).half()).float().softmax(-1)


@clean
def lbfgs_with_a_closure():
    torch.manual_seed(0)
    model = mlp().eval()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for x, y in batches(n=64):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


@clean
def autocast_as_decorator_and_worker_processes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(32, 3)

        @torch.autocast("cpu", dtype=BF16)
        def forward(self, x):
            return self.layer(x)

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    for x, y in DataLoader(batches(n=128).dataset, batch_size=32, num_workers=2):
        loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def one_cycle_with_parameter_groups():
    torch.manual_seed(0)
    model = mlp()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 1e-4}, {"params": vectors, "weight_decay": 0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=16)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        for x, y in batches():
            with amp():
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()


@clean
def dice_loss_in_fp32():
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 1, 1)
    )
    model, optimizer, scaler = training(net)
    for x, _ in batches(images=True, n=64, batch=8):
        target = (x > 0).float()
        with amp():
            out = model(x)
        p = out.float().sigmoid()
        dice = 1 - (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)
        loss = dice + F.binary_cross_entropy_with_logits(out.float(), target)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def contrastive():
    torch.manual_seed(0)
    images, texts = mlp(16), mlp(16)
    temperature = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
    params = [*images.parameters(), *texts.parameters(), temperature]
    optimizer = torch.optim.AdamW(params, 1e-3)
    scaler = torch.amp.GradScaler("cpu")
    for x, _ in batches():
        with amp():
            u = F.normalize(images(x), dim=-1)
            v = F.normalize(texts(x + 0.1 * torch.randn_like(x)), dim=-1)
            logits = temperature.exp() * u @ v.T
            pairs = torch.arange(len(x))
            loss = (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            temperature.clamp_(0, 4.6)


@clean
def vae_in_bf16():
    torch.manual_seed(0)
    encoder = mlp(16)
    decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32))
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
    for x, _ in batches():
        with amp(BF16):
            mean, log_variance = encoder(x).chunk(2, -1)
            z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
            out = decoder(z)
        m, lv = mean.float(), log_variance.float()
        loss = F.mse_loss(out.float(), x) - 0.5 * (1 + lv - m**2 - lv.exp()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def target_network():
    torch.manual_seed(0)
    network = mlp(4)
    target = copy.deepcopy(network).requires_grad_(False)
    optimizer = torch.optim.Adam(network.parameters())
    for x, y in batches():
        with torch.no_grad(), amp(BF16):
            goal = target(x).float().max(1).values
        with amp(BF16):
            picked = network(x).gather(1, y[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(picked.float(), goal)
        optimizer.zero_grad()
        loss.backward()
        clip_grad_value_(network.parameters(), 100)
        optimizer.step()
        with torch.no_grad():
            for p, t in zip(network.parameters(), target.parameters(), strict=True):
                t.lerp_(p, 0.005)


@clean
def distillation_from_a_half_teacher():
    teacher = mlp().half().eval()
    model, optimizer, scaler = training()
    for x, y in batches():
        with torch.no_grad():
            soft = teacher(x.half()).float()
        with amp():
            out = model(x)
            kl = F.kl_div(
                (out.float() / 2).log_softmax(-1), (soft / 2).softmax(-1), reduction="batchmean"
            )
            loss = 4 * kl + F.cross_entropy(out, y)
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def several_losses_and_backwards():
    body, classes, value = nn.Linear(32, 32), nn.Linear(32, 3), nn.Linear(32, 1)
    _, optimizer, scaler = training(nn.ModuleList([body, classes, value]))
    for x, y in batches():
        with amp():
            z = F.relu(body(x))
            first = F.cross_entropy(classes(z), y)
            second = F.mse_loss(value(z).squeeze(1), y.float())
        optimizer.zero_grad()
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(second).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def several_losses_in_one_backward():
    model, optimizer, scaler = training()
    for x, y in batches():
        with amp():
            out = model(x)
            losses = [F.cross_entropy(out, y), 0.1 * out.float().pow(2).mean()]
        optimizer.zero_grad()
        torch.autograd.backward([scaler.scale(loss) for loss in losses])
        scaler.step(optimizer)
        scaler.update()


@clean
def low_rank_adapters_on_a_half_base():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(32, 32).half().requires_grad_(False)
            self.down = nn.Linear(32, 4, bias=False)
            self.up = nn.Linear(4, 32, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    torch.manual_seed(0)
    model = nn.Sequential(Adapted(), nn.ReLU(), Adapted())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
    scaler = torch.amp.GradScaler("cpu")
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def sharpness_aware():
    class SAM(torch.optim.Optimizer):
        def __init__(self, params, base, rho=0.05, **options):
            super().__init__(params, dict(rho=rho, **options))
            self.base = base(self.param_groups, **options)
            self.param_groups = self.base.param_groups

        def _params(self):
            return [p for group in self.param_groups for p in group["params"]]

        @torch.no_grad()
        def climb(self):
            norm = torch.stack([p.grad.norm() for p in self._params()]).norm()
            for p in self._params():
                self.state[p]["e"] = p.grad * (self.defaults["rho"] / (norm + 1e-12))
                p.add_(self.state[p]["e"])
            self.zero_grad()

        @torch.no_grad()
        def step(self, closure=None):
            for p in self._params():
                p.sub_(self.state[p]["e"])
            self.base.step()
            self.zero_grad()

    torch.manual_seed(0)
    model = mlp()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    for x, y in batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.climb()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@clean
def gradients_of_single_samples():
    from torch.func import functional_call, grad, vmap

    torch.manual_seed(0)
    model = nn.Linear(32, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss(params, x, y):
        return F.cross_entropy(functional_call(model, params, (x[None],)), y[None])

    for x, y in batches():
        params = {name: p.detach() for name, p in model.named_parameters()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
        optimizer.zero_grad()
        for name, p in model.named_parameters():
            p.grad = each[name].mean(0)
        optimizer.step()


@clean
def sampling_text():
    torch.manual_seed(0)
    model = LanguageModel().eval()
    tokens = torch.randint(1, 40, (2, 4))
    with torch.inference_mode(), amp(BF16):
        for _ in range(6):
            logits = model(tokens)[:, -1].float() / 0.8
            kept = logits.topk(5).values[:, -1:]
            logits[logits < kept] = -float("inf")
            tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1)], 1)


@clean
def rms_norm_by_hand_in_fp32():
    weight = nn.Parameter(torch.ones(32))
    model, _, scaler = training()
    optimizer = torch.optim.AdamW([weight, *model.parameters()], 1e-3)

    def rms_norm(x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(rms_norm(x * 30)), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def adversarial_examples():
    """The gradient of the input is wanted, twice a step."""
    model, optimizer, _ = training()
    for x, y in batches():
        x.requires_grad_()
        with amp(BF16):
            loss = F.cross_entropy(model(x), y)
        (slope,) = torch.autograd.grad(loss, x)
        attacked = (x + 0.05 * slope.sign()).detach()
        with amp(BF16):
            loss = F.cross_entropy(model(attacked), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@clean
def static_scale_by_hand():
    model, optimizer, _ = training()
    for x, y in batches():
        with amp():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * 1024.0).backward()
        for p in model.parameters():
            p.grad.data.div_(1024.0)
        optimizer.step()


@clean
def zeroing_by_hand():
    model, optimizer, scaler = training()
    for x, y in batches():
        for p in model.parameters():
            if p.grad is not None:
                p.grad.data.zero_()
        with amp():
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@clean
def skipping_bad_batches_properly():
    """A NaN in a batch: the batch is left out before anything was done with it."""
    model, optimizer, scaler = training()
    for i, (x, y) in enumerate(batches()):
        with amp():
            loss = F.cross_entropy(model(x), y)
        if i == 3:
            continue
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if not norm.isfinite():
            scaler.update()
            continue
        scaler.step(optimizer)
        scaler.update()


@clean
def truncated_backpropagation():
    torch.manual_seed(0)
    cell, head = nn.GRUCell(32, 24), nn.Linear(24, 3)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    state = torch.zeros(32, 24)
    for x, y in batches():
        with amp(BF16):
            state = cell(x, state.detach())
            loss = F.cross_entropy(head(state).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
