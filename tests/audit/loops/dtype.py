"""Examples for the rules of dtype."""

import concurrent.futures

import torch
import torch.nn.functional as F
from torch import nn

from tests.audit.loops.examples import fires, silent
from tests.audit.loops.pieces import BF16, CNN, FP16, amp, batches, mlp, training


def amp_loop(model, optimizer, scaler, loss_of=F.cross_entropy, dtype=FP16, images=False):
    """The right loop; what is wrong, if anything, is in its arguments."""
    for x, y in batches(images=images, n=128):
        with amp(dtype):
            loss = loss_of(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def plain_loop(model, optimizer, images=False):
    """A loop for models that are in 16 bits themselves."""
    dtype = next(model.parameters()).dtype
    for x, y in batches(images=images, n=128):
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(dtype)).float(), y).backward()
        optimizer.step()


@fires("half_parameters_with_scaler")
def half_model_with_scaler():
    model, optimizer, scaler = training(mlp().half())
    amp_loop(model, optimizer, scaler)


@silent("half_parameters_with_scaler", "amp_off", "scaler_with_bf16", "half_loss")
def fp32_model_with_scaler():
    amp_loop(*training())


@fires("scaler_with_bf16")
def scaler_with_bf16():
    amp_loop(*training(), dtype=BF16)


@silent("scaler_with_bf16", "amp_off")
def disabled_scaler_with_bf16():
    amp_loop(*training(enabled=False), dtype=BF16)


@fires("amp_off")
def autocast_for_cuda_on_the_cpu():
    model, optimizer, _ = training()
    forward = torch.autocast("cuda", dtype=BF16)(model.forward)
    for x, y in batches():
        loss = F.cross_entropy(forward(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@fires("amp_off")
def scaler_for_cuda_on_the_cpu():
    model, optimizer, _ = training()
    scaler = torch.amp.GradScaler()
    amp_loop(model, optimizer, scaler, dtype=BF16)


@fires("scaler_without_autocast")
def autocast_made_and_never_entered():
    model, optimizer, scaler = training()
    for x, y in batches():
        torch.autocast("cpu", dtype=FP16)  # without `with`
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@silent("scaler_without_autocast")
def disabled_scaler_in_fp32():
    model, optimizer, scaler = training(enabled=False)
    for x, y in batches():
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@fires("autocast_in_another_thread")
def pool_of_threads():
    model, optimizer, _ = training()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for x, y in batches():
            with amp(BF16):
                parts = list(pool.map(lambda part: model(part), x.chunk(2)))
                loss = F.cross_entropy(torch.cat(parts), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@silent("autocast_in_another_thread")
def pool_of_threads_with_their_own_autocast():
    model, optimizer, _ = training()

    @torch.autocast("cpu", dtype=BF16)
    def forward(part):
        return model(part)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for x, y in batches():
            loss = F.cross_entropy(torch.cat(list(pool.map(forward, x.chunk(2)))).float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@fires("dtype_mismatch")
def float_batch_into_a_half_model():
    model = mlp().half().eval()
    with torch.no_grad():
        model(torch.randn(4, 32))


@fires("dtype_mismatch")
def product_of_two_dtypes():
    weight = torch.randn(32, 8).bfloat16()
    with torch.no_grad():
        torch.randn(4, 32) @ weight


@silent("dtype_mismatch", "custom_function_dtype")
def half_batch_into_a_half_model():
    model = mlp().half().eval()
    with torch.no_grad():
        model(torch.randn(4, 32).half())


class Careless(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.mT @ x


class Careful(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        return Careless.forward(ctx, x, weight)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return Careless.backward(ctx, grad)


def _custom(function):
    model, optimizer, scaler = training(nn.Linear(32, 3))
    for x, y in batches():
        x.requires_grad_()
        with amp():
            loss = F.cross_entropy(function.apply(x, model.weight), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@fires("custom_function_dtype")
def custom_function():
    _custom(Careless)


@silent("custom_function_dtype")
def custom_function_with_decorators():
    _custom(Careful)


@fires("unsafe_loss")
def bce_on_probabilities():
    criterion = nn.BCELoss()

    def loss(out, y):
        return criterion(out.sigmoid().squeeze(1), y.clamp(max=1).to(out.dtype))

    amp_loop(*training(mlp(1)), loss_of=loss)


@silent("unsafe_loss")
def bce_on_logits():
    def loss(out, y):
        return F.binary_cross_entropy_with_logits(out.squeeze(1).float(), y.clamp(max=1).float())

    amp_loop(*training(mlp(1)), loss_of=loss)


@fires("half_loss")
def loss_in_fp16():
    amp_loop(*training(init_scale=1024.0), loss_of=lambda out, y: out.pow(2).mean())


@fires("eval_without_autocast")
def evaluation_in_fp32():
    model, optimizer, scaler = training()
    amp_loop(model, optimizer, scaler)
    model.eval()
    with torch.no_grad():
        for x, _ in batches(n=64):
            model(x)


@silent("eval_without_autocast")
def evaluation_in_autocast():
    model, optimizer, scaler = training()
    amp_loop(model, optimizer, scaler)
    model.eval()
    with torch.no_grad(), amp():
        for x, _ in batches(n=64):
            model(x)


@fires("cpu_policy_differs")
def softmax_on_the_cpu():
    model = nn.Linear(32, 32).eval()
    with torch.inference_mode(), amp(BF16):
        torch.softmax(model(torch.randn(8, 32)), -1)


@silent("cpu_policy_differs")
def softmax_in_fp32():
    model = nn.Linear(32, 32).eval()
    with torch.inference_mode(), amp(BF16):
        torch.softmax(model(torch.randn(8, 32)).float(), -1)


# -- what training keeps -------------------------------------------------------------------------


@fires("weights_stall")
def fine_tuning_in_pure_bf16():
    model = mlp().bfloat16()
    plain_loop(model, torch.optim.SGD(model.parameters(), 1e-5))


@fires("optimizer_state_stalls")
@silent("weights_stall", "adam_eps_vanishes", "half_batchnorm", "fp16_without_scaler")
def second_moments_in_bf16():
    """Large gradients at the start, as after a cold start, put the second moment up for good."""
    model = mlp().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for i, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        (loss * (100 if i < 2 else 1)).backward()
        optimizer.step()


@silent("optimizer_state_stalls", "weights_stall")
def second_moments_in_fp32():
    model, optimizer, scaler = training(enabled=False)
    amp_loop(model, optimizer, scaler, dtype=BF16)


@fires("adam_eps_vanishes")
def half_model_with_adam():
    model = mlp().half()
    plain_loop(model, torch.optim.Adam(model.parameters(), 1e-3))


@silent("adam_eps_vanishes")
def half_model_with_a_large_eps():
    model = mlp().half()
    plain_loop(model, torch.optim.Adam(model.parameters(), 1e-3, eps=1e-4))


def _with_average(update, dtype):
    model, optimizer, _ = training()
    average = [p.detach().clone().to(dtype) for p in model.parameters()]
    for x, y in batches():
        with amp(BF16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average, model.parameters(), strict=True):
                update(a, p)


def _log_the_loss(total, log):
    model, optimizer, _ = training()
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        total = log(total, loss.detach())
        optimizer.step()


@fires("total_in_16_bits")
def total_of_the_loss_in_fp16():
    def log(total, loss):
        total += loss
        return total

    _log_the_loss(torch.zeros((), dtype=FP16), log)


@silent("total_in_16_bits")
def total_of_the_loss_in_fp32():
    _log_the_loss(torch.zeros(()), lambda total, loss: total.add_(loss))


@silent("total_in_16_bits")
def average_of_the_loss_in_fp16():
    """An average of decay 0.9 forgets: it is no total."""
    _log_the_loss(
        torch.zeros((), dtype=FP16), lambda total, loss: total.mul_(0.9).add_(loss, alpha=0.1)
    )


@fires("average_stalls")
def average_in_bf16():
    _with_average(lambda a, p: a.mul_(0.9995).add_(p, alpha=0.0005), BF16)


@fires("average_stalls")
def average_copied_in_fp16():
    _with_average(lambda a, p: a.copy_(0.9999 * a + 0.0001 * p.half()), FP16)


@fires("average_stalls")
def momentum_encoder_replaced_in_bf16():
    def update(a, p):
        a.data = a.data * 0.999 + p.data.bfloat16() * 0.001

    _with_average(update, BF16)


@silent("average_stalls")
def average_in_fp32():
    _with_average(lambda a, p: a.lerp_(p, 0.0005), torch.float32)


@fires("half_batchnorm")
def bf16_network_with_batchnorm():
    model = CNN().bfloat16()
    plain_loop(model, torch.optim.SGD(model.parameters(), 0.05), images=True)


@silent("half_batchnorm")
def batchnorm_under_autocast():
    amp_loop(*training(CNN()), images=True)
