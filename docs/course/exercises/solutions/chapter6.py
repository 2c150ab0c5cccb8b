"""Answers to chapter 6."""


def rate_inv(base_lr, gamma, power, iteration):
    return base_lr * (1 + gamma * iteration) ** -power


def momentum_step(w, v, gradient, rate, momentum, decay):
    v = momentum * v + rate * (gradient + decay * w)
    return w - v, v


def read_twice(layers):
    made, current = [], {}                          # [name, times read]; by name the newest
    for bottoms, tops in layers:
        for name in bottoms:
            current[name][1] += 1
        for name in tops:
            current[name] = [name, 0]
            made.append(current[name])
    return [name for name, times in made if times > 1]
