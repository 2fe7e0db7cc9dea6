"""What people really write for exercise 07, and how right answers may look."""

import torch
import torch.nn.functional as F

from tests.answers import right, wrong

# -- 07.1 train ----------------------------------------------------------------------------------


def fp16():
    return torch.autocast("cpu", torch.float16)


def scaled_step(p, loss):
    p.scaler.scale(loss).backward()
    p.scaler.step(p.optimizer)
    p.scaler.update()


@wrong("07.1", "region around the loop")
def one_region_for_all(p):
    losses = []
    with fp16():
        for x, y in p.batches:
            p.optimizer.zero_grad()
            scaled_step(p, F.cross_entropy(p.model(x), y))
            with torch.no_grad():
                losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@wrong("07.1", "region around the loop")
@torch.autocast("cpu", torch.float16)
def decorates_the_loop(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        scaled_step(p, F.cross_entropy(p.model(x), y))
        with torch.no_grad():
            losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@wrong("07.1", "region around the step")
def one_region_a_batch(p):
    losses = []
    for x, y in p.batches:
        with fp16():
            p.optimizer.zero_grad()
            loss = F.cross_entropy(p.model(x), y)
            scaled_step(p, loss)
            with torch.no_grad():
                losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@wrong("07.1", "region around the step")
def returns_the_training_loss(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with fp16():
            loss = F.cross_entropy(p.model(x), y)
        scaled_step(p, loss)
        losses.append(loss.item())
    return losses


@wrong("07.1", "not in 16 bits")
def asks_for_cuda(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(p.model(x), y)
        scaled_step(p, loss)
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@wrong("07.1", "not in 16 bits")
def makes_a_region_and_does_not_enter_it(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        fp16()
        scaled_step(p, F.cross_entropy(p.model(x), y))
        with torch.no_grad():
            losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@wrong("07.1", "the CPU's default dtype")
def leaves_the_dtype_out(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = F.cross_entropy(p.model(x), y)
        scaled_step(p, loss)
        with torch.no_grad(), torch.autocast("cpu"):
            losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@wrong("07.1", "loss outside")
def takes_the_model_alone(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with fp16():
            logits = p.model(x)
        scaled_step(p, F.cross_entropy(logits, y))
        with torch.no_grad(), fp16():
            logits = p.model(x)
        losses.append(F.cross_entropy(logits, y).item())
    return losses


@wrong("07.1", "measured in FP32")
def forgets_the_measurement(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with fp16():
            loss = F.cross_entropy(p.model(x), y)
        scaled_step(p, loss)
        with torch.no_grad():
            losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@wrong("07.1", "half the model")
def calls_half(p):
    model = p.model.half()
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        loss = F.cross_entropy(model(x.half()), y)
        scaled_step(p, loss)
        with torch.no_grad():
            losses.append(F.cross_entropy(model(x.half()), y).item())
    return losses


@right("07.1")
def throws_the_casts_away(p):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with fp16():
            loss = F.cross_entropy(p.model(x), y)
            scaled_step(p, loss)
            torch.clear_autocast_cache()
            with torch.no_grad():
                losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@right("07.1")
def keeps_no_casts(p):
    losses = []
    with torch.autocast("cpu", torch.float16, cache_enabled=False):
        for x, y in p.batches:
            p.optimizer.zero_grad()
            scaled_step(p, F.cross_entropy(p.model(x), y))
            with torch.no_grad():
                losses.append(F.cross_entropy(p.model(x), y).item())
    return losses


@right("07.1")
def decorates_the_loss(p):
    @torch.autocast("cpu", torch.float16)
    def loss_of(x, y):
        return F.cross_entropy(p.model(x), y)

    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        scaled_step(p, loss_of(x, y))
        losses.append(loss_of(x, y).item())
    return losses


# -- 07.2 make_log_partition -----------------------------------------------------------------------


class LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        powers = torch.exp(x @ w)
        total = powers.sum(-1, keepdim=True)
        ctx.save_for_backward(x, w, powers / total)
        return total.log()

    @staticmethod
    def backward(ctx, grad):
        x, w, shares = ctx.saved_tensors
        return (grad * shares) @ w.mT, x.mT @ (grad * shares)


@wrong("07.2", "not guarded")
def returns_it_as_it_is(device_type):
    return LogPartition


@wrong("07.2", "not guarded")
def guards_for_cuda(device_type):
    class Guarded(LogPartition):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x, w):
            return LogPartition.forward(ctx, x, w)

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            return LogPartition.backward(ctx, grad)

    return Guarded


@wrong("07.2", "inputs not cast")
def guards_without_a_cast(device_type):
    class Guarded(LogPartition):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type)
        def forward(ctx, x, w):
            return LogPartition.forward(ctx, x, w)

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, grad):
            return LogPartition.backward(ctx, grad)

    return Guarded


@wrong("07.2", "cast to 16 bits")
def casts_to_fp16(device_type):
    class Guarded(LogPartition):
        forward = staticmethod(
            torch.amp.custom_fwd(
                LogPartition.forward, device_type=device_type, cast_inputs=torch.float16
            )
        )
        backward = staticmethod(torch.amp.custom_bwd(LogPartition.backward, device_type="cpu"))

    return Guarded


@wrong("07.2", "backward not guarded")
def guards_forward_alone(device_type):
    class Guarded(LogPartition):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)
        def forward(ctx, x, w):
            return LogPartition.forward(ctx, x, w)

    return Guarded


@wrong("07.2", "forward not guarded")
def guards_backward_alone(device_type):
    class Guarded(LogPartition):
        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, grad):
            return LogPartition.backward(ctx, grad)

    return Guarded


@wrong("07.2", "cast in a region only")
def leaves_the_cast_to_the_decorator(device_type):
    class Guarded(LogPartition):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)
        def forward(ctx, x, w):
            return LogPartition.forward(ctx, x, w)

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, grad):
            return LogPartition.backward(ctx, grad)

    return Guarded


@wrong("07.2", "floats alone")
def casts_by_hand(device_type):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return LogPartition.forward(ctx, x.to(torch.float32), w.to(torch.float32))

        @staticmethod
        def backward(ctx, grad):
            return LogPartition.backward(ctx, grad.float())

    return Function


@wrong("07.2", "saved as given")
def makes_an_island_in_forward(device_type):
    class Function(LogPartition):
        @staticmethod
        def forward(ctx, x, w):
            with torch.autocast(device_type, enabled=False):
                logits = x.float() @ w.float()
            ctx.save_for_backward(x, w, logits.softmax(-1))
            return logits.logsumexp(-1, keepdim=True)

    return Function


@right("07.2")
def makes_islands_in_both(device_type):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            with torch.autocast(device_type, enabled=False):
                return LogPartition.forward(ctx, x.float(), w.float())

        @staticmethod
        def backward(ctx, grad):
            with torch.autocast(device_type, enabled=False):
                return LogPartition.backward(ctx, grad.float())

    return Function


@right("07.2")
def decorates_outside_and_subtracts_the_largest(device_type):
    class Function(torch.autograd.Function):
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)
        @staticmethod
        def forward(ctx, x, w):
            x, w = x.float(), w.float()
            logits = x @ w
            ctx.save_for_backward(x, w, logits.softmax(-1))
            top = logits.amax(-1, keepdim=True)
            return top + (logits - top).exp().sum(-1, keepdim=True).log()

        @torch.amp.custom_bwd(device_type=device_type)
        @staticmethod
        def backward(ctx, grad):
            x, w, shares = ctx.saved_tensors
            return (grad * shares) @ w.mT, x.mT @ (grad * shares)

    return Function


# -- 07.3 gram_loss --------------------------------------------------------------------------------


@wrong("07.3", "product in 16 bits")
def trusts_autocast(h, target):
    return F.mse_loss(h @ h.mT / h.shape[1], target)


@wrong("07.3", "product in 16 bits")
def casts_in_front(h, target):
    h = h.float()
    return F.mse_loss(h @ h.mT / h.shape[1], target)


@wrong("07.3", "product in 16 bits")
def casts_behind(h, target):
    gram = (h @ h.mT).float() / h.shape[1]
    return (gram - target).square().mean()


@wrong("07.3", "product in 16 bits")
def switches_cuda_off(h, target):
    with torch.autocast("cuda", enabled=False):
        h = h.float()
        return F.mse_loss(h @ h.mT / h.shape[1], target)


@wrong("07.3", "switched off without a cast")
def switches_off(h, target):
    with torch.autocast(h.device.type, enabled=False):
        gram = h @ h.mT / h.shape[1]
    return F.mse_loss(gram.float(), target)


@wrong("07.3", "divided first")
def divides_before(h, target):
    return F.mse_loss(h / h.shape[1] @ h.mT, target)


@wrong("07.3", "divided by the root first")
def divides_by_the_root(h, target):
    h = h / h.shape[1] ** 0.5
    return F.mse_loss(h @ h.mT, target)


@wrong("07.3", "computed in BF16")
def takes_bf16(h, target):
    with torch.autocast(h.device.type, torch.bfloat16):
        gram = h @ h.mT / h.shape[1]
    return F.mse_loss(gram, target)


@wrong("07.3", "cut off from h")
def turns_gradients_off_too(h, target):
    with torch.no_grad(), torch.autocast(h.device.type, enabled=False):
        h = h.float()
        return F.mse_loss(h @ h.mT / h.shape[1], target)


@wrong("07.3", "made finite")
def clamps(h, target):
    gram = torch.clamp(h @ h.mT, -65504, 65504) / h.shape[1]
    return F.mse_loss(gram, target)


@wrong("07.3", "handed back in 16 bits")
def returns_what_it_was_given(h, target):
    with torch.autocast(h.device.type, enabled=False):
        x = h.float()
        return F.mse_loss(x @ x.mT / x.shape[1], target).to(h.dtype)


@right("07.3")
def sums_products_itself(h, target):
    x = h.float()
    gram = (x.unsqueeze(1) * x.unsqueeze(0)).sum(-1) / x.shape[1]
    return (gram - target).pow(2).mean()


@right("07.3")
def computes_in_double(h, target):
    x = h.double()
    return F.mse_loss(x @ x.mT / x.shape[1], target.double()).float()


@right("07.3")
def decorates_it(h, target):
    @torch.autocast(h.device.type, enabled=False)
    def loss(x):
        return (torch.einsum("id,jd->ij", x, x) / x.shape[1] - target).square().mean()

    return loss(h.float())
