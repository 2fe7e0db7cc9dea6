"""What people really write for exercise 04, and how right answers may look."""

import math

import numpy as np
import torch

from tests.answers import right, wrong

# -- 04.1 moves --------------------------------------------------------------------------------


@wrong("04.1", "one ratio for every weight")
def compares_with_2048(weight, update):
    limit = 2048 if weight.dtype == torch.float16 else 256
    return weight.float().abs() < limit * update.abs()


@wrong("04.1", "update rounded first")
def casts_the_update(weight, update):
    return (weight + update.to(weight.dtype)) != weight


@wrong("04.1", "update representable")
def asks_whether_the_update_is_zero(weight, update):
    return update.to(weight.dtype).abs() > 0


@wrong("04.1", "tie always moves")
def lets_ties_move(weight, update):
    eps = torch.finfo(weight.dtype).eps
    _, e = torch.frexp(weight.float())
    half_ulp = torch.ldexp(torch.full_like(update, eps / 2), e - 1)
    moved = (weight.float() + update).to(weight.dtype) != weight
    return moved | (update.abs() == half_ulp)


@wrong("04.1", "whole ulp needed")
def waits_for_a_whole_ulp(weight, update):
    eps = torch.finfo(weight.dtype).eps
    _, e = torch.frexp(weight.float())
    return update.abs() >= torch.ldexp(torch.full_like(update, eps), e - 1)


@wrong("04.1", "same distance on both sides")
def takes_the_ulp_above(weight, update):
    eps = torch.finfo(weight.dtype).eps
    _, e = torch.frexp(weight.float())
    return update.abs() > torch.ldexp(torch.full_like(update, eps / 2), e - 1)


@wrong("04.1", "never rounded back")
def stays_in_fp32(weight, update):
    new = weight.float() + update
    return new.ne(weight.float())


@wrong("04.1", "asks what stays")
def answers_the_opposite(weight, update):
    return (weight.float() + update).to(weight.dtype) == weight


@wrong("04.1", "eps for every weight")
def compares_with_eps(weight, update):
    return update.abs() > torch.finfo(weight.dtype).eps / 2


@right("04.1")
def adds_in_fp64(weight, update):
    exact = weight.double() + update.double()
    return exact.float().to(weight.dtype).ne(weight)


@right("04.1")
def loops_over_elements(weight, update):
    answers = []
    for w, u in zip(weight.flatten(), update.flatten(), strict=True):
        new = torch.tensor(w.item() + u.item()).to(weight.dtype)
        answers.append(bool(new != w))
    return torch.tensor(answers).reshape(weight.shape)


@right("04.1")
def copies_and_adds_in_place(weight, update):
    before = weight.clone()
    weight.copy_(weight.float().add_(update))
    return weight != before


# -- 04.2 sgd_with_master ----------------------------------------------------------------------


@wrong("04.2", "nothing kept between steps")
def makes_the_master_anew(weight, gradients, lr):
    weights = []
    for gradient in gradients:
        master = weight.float()
        master = master - lr * gradient.float()
        weight = master.half()
        weights.append(weight)
    return weights


@wrong("04.2", "nothing kept between steps")
def stays_in_16_bits(weight, gradients, lr):
    weights = []
    for gradient in gradients:
        weight = weight - lr * gradient
        weights.append(weight)
    return weights


@wrong("04.2", "update computed in 16 bits")
def multiplies_in_16_bits(weight, gradients, lr):
    master = weight.clone().float()
    weights = []
    for gradient in gradients:
        master -= lr * gradient
        weights.append(master.half())
    return weights


@wrong("04.2", "master returned")
def returns_the_master(weight, gradients, lr):
    master = weight.float()
    masters = []
    for gradient in gradients:
        master = master - lr * gradient.float()
        masters.append(master.clone())
    return masters


@wrong("04.2", "uphill")
def adds_the_gradient(weight, gradients, lr):
    master = weight.float()
    weights = []
    for gradient in gradients:
        master = master + lr * gradient.float()
        weights.append(master.half())
    return weights


@wrong("04.2", "weights never refreshed")
def forgets_to_copy_back(weight, gradients, lr):
    master = weight.float()
    weights = []
    for gradient in gradients:
        master -= lr * gradient.float()
        weights.append(weight.clone())
    return weights


@wrong("04.2", "the same tensor every time")
def appends_one_tensor(weight, gradients, lr):
    master, weight = weight.float(), weight.clone()
    weights = []
    for gradient in gradients:
        master -= lr * gradient.float()
        weight.copy_(master)
        weights.append(weight)
    return weights


@wrong("04.2", "starting weights included")
def includes_the_start(weight, gradients, lr):
    master = weight.float()
    weights = [weight]
    for gradient in gradients:
        master = master - lr * gradient.float()
        weights.append(master.half())
    return weights


@wrong("04.2", "last weights alone")
def returns_the_last_alone(weight, gradients, lr):
    master = weight.float()
    for gradient in gradients:
        master = master - lr * gradient.float()
    return [master.half()] if gradients else []


@right("04.2")
def uses_torch_optim(weight, gradients, lr):
    master = torch.nn.Parameter(weight.float())
    optimizer = torch.optim.SGD([master], lr=lr)
    weights = []
    for gradient in gradients:
        master.grad = gradient.float()
        optimizer.step()
        weights.append(master.detach().half())
    return weights


@right("04.2")
def works_in_place_with_add(weight, gradients, lr):
    master = weight.to(torch.float32, copy=True)
    weights = []
    for gradient in gradients:
        master.add_(gradient.float(), alpha=-lr)
        weights.append(master.to(weight.dtype).clone())
    return tuple(weights)


# -- 04.3 lost_from_ratio ----------------------------------------------------------------------


@wrong("04.3", "whole ulp")
def divides_by_the_ulp(weight, mantissa_bits):
    return weight / 2.0 ** (math.floor(math.log2(weight)) - mantissa_bits)


@wrong("04.3", "2048 for every weight")
def knows_the_number_from_the_paper(weight, mantissa_bits):
    return 2.0 ** (mantissa_bits + 1)


@wrong("04.3", "neighbour below")
def looks_below(weight, mantissa_bits):
    f, e = math.frexp(weight)
    exponent = e - 2 if f == 0.5 else e - 1
    return weight / 2.0 ** (exponent - mantissa_bits - 1)


@wrong("04.3", "whole ulp")
def trusts_frexp(weight, mantissa_bits):
    exponent = math.frexp(weight)[1]
    ulp = 2.0 ** (exponent - mantissa_bits)
    return weight / (ulp / 2)


@wrong("04.3", "whole ulp")
def trusts_frexp_and_forgets_the_half(weight, mantissa_bits):
    ulp = 2.0 ** (math.frexp(weight)[1] - 1 - mantissa_bits)
    return weight / ulp


@wrong("04.3", "ratio upside down")
def divides_the_wrong_way(weight, mantissa_bits):
    ulp = 2.0 ** (math.frexp(weight)[1] - 1 - mantissa_bits)
    return ulp / 2 / weight


@wrong("04.3", "update instead of ratio")
def returns_the_update(weight, mantissa_bits):
    return 2.0 ** (math.frexp(weight)[1] - 1 - mantissa_bits) / 2


@wrong("04.3", "hidden bit counted twice")
def counts_the_hidden_bit(weight, mantissa_bits):
    precision = mantissa_bits + 1
    ulp = 2.0 ** (math.frexp(weight)[1] - 1 - precision)
    return weight / (ulp / 2)


@right("04.3")
def normalises_first(weight, mantissa_bits):
    while weight >= 2:
        weight /= 2
    while weight < 1:
        weight *= 2
    return weight * 2 ** (mantissa_bits + 1)


@right("04.3")
def uses_the_fraction_of_frexp(weight, mantissa_bits):
    return np.float64(math.frexp(weight)[0] * 2 ** (mantissa_bits + 2))
