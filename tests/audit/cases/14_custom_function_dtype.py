"""Case 14: custom function dtype.

Source: pytorch/pytorch#38487, #47906; NVIDIA docs amp_examples custom_fwd/custom_bwd
Symptom: expected scalar type Half but found Float inside a custom autograd.Function
Cause: backward() runs OUTSIDE autocast; tensors saved in forward are fp32 while the incoming grad
    is fp16
Fix: @custom_fwd(device_type=, cast_inputs=)/@custom_bwd(device_type=), or cast by hand
"""

import torch

torch.manual_seed(0)


class Bad(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x, w: (ctx.save_for_backward(x, w), x @ w)[1])
    backward = staticmethod(
        lambda ctx, g: (g @ ctx.saved_tensors[1].t(), ctx.saved_tensors[0].t() @ g)
    )


class Good(Bad):
    forward, backward = (
        staticmethod(torch.amp.custom_fwd(Bad.forward, device_type="cpu")),
        staticmethod(torch.amp.custom_bwd(Bad.backward, device_type="cpu")),
    )


x, w = torch.randn(2, 3, requires_grad=True), torch.randn(3, 4, requires_grad=True)


def run(Fn):
    with torch.autocast("cpu", torch.float16):
        y = Fn.apply(x, w)
    try:
        return [t.dtype for t in torch.autograd.grad(y.sum(), (x, w))]
    except RuntimeError as e:
        return str(e)


print("bad :", run(Bad), "| good:", run(Good))
assert "same dtype" in run(Bad) and run(Good) == [torch.float32] * 2
