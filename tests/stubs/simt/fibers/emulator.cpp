#include "resolver/simt/emulator.h"

#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace hisparse::simt::emulator {
namespace {

enum class State { kReady, kAtBarrier, kAtBallot, kDone };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  State state = State::kReady;
  bool flag = false;
  uint64_t mask = 0;
};

constexpr size_t kStack = 64 << 10;

struct Machine {
  std::vector<Fiber> fibers;
  ucontext_t scheduler;
  const std::function<void()>* kernel = nullptr;
  uint32_t current = 0;
};

Machine machine;

void enter() {
  (*machine.kernel)();
  machine.fibers[machine.current].state = State::kDone;
}

void wait(State state) {
  Fiber& fiber = machine.fibers[machine.current];
  fiber.state = state;
  swapcontext(&fiber.context, &machine.scheduler);
}

void start(uint32_t threads) {
  if (machine.fibers.size() < threads) machine.fibers.resize(threads);
  for (uint32_t i = 0; i < threads; ++i) {
    Fiber& fiber = machine.fibers[i];
    if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStack);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &machine.scheduler;
    makecontext(&fiber.context, enter, 0);
    fiber.state = State::kReady;
  }
}

size_t count(uint32_t begin, uint32_t end, State state) {
  return std::count_if(machine.fibers.begin() + begin, machine.fibers.begin() + end,
                       [state](const Fiber& fiber) { return fiber.state == state; });
}

// Warps all of whose threads stand at a ballot get its mask.
bool finish_ballots(uint32_t threads) {
  bool any = false;
  for (uint32_t warp = 0; warp < threads; warp += kWarp) {
    const uint32_t end = std::min(threads, warp + kWarp);
    const size_t waiting = count(warp, end, State::kAtBallot);
    if (waiting == 0) continue;
    if (waiting < end - warp)
      throw std::runtime_error("thread " + std::to_string(warp) + " and its warp: not all are at the ballot");
    uint64_t mask = 0;
    for (uint32_t i = warp; i < end; ++i) mask |= uint64_t{machine.fibers[i].flag} << (i - warp);
    for (uint32_t i = warp; i < end; ++i) {
      machine.fibers[i].mask = mask;
      machine.fibers[i].state = State::kReady;
    }
    any = true;
  }
  return any;
}

}  // namespace

uint32_t number_of_threads = 0;

uint32_t thread() { return machine.current; }
uint32_t threads() { return number_of_threads; }
void barrier() { wait(State::kAtBarrier); }
uint64_t ballot(bool flag) {
  machine.fibers[machine.current].flag = flag;
  const uint32_t me = machine.current;
  wait(State::kAtBallot);
  return machine.fibers[me].mask;
}

void run_block(const Launch& launch, const std::function<void()>& kernel) {
  const uint32_t threads = number_of_threads = launch.threads;
  machine.kernel = &kernel;
  start(threads);
  std::vector<uint32_t> order(threads);
  for (uint32_t i = 0; i < threads; ++i) order[i] = i;
  std::mt19937 random(launch.seed);
  while (count(0, threads, State::kDone) < threads) {
    if (launch.seed != 0) std::shuffle(order.begin(), order.end(), random);
    for (const uint32_t i : order)
      if (machine.fibers[i].state == State::kReady) {
        machine.current = i;
        swapcontext(&machine.scheduler, &machine.fibers[i].context);
      }
    if (finish_ballots(threads)) continue;
    const size_t waiting = count(0, threads, State::kAtBarrier);
    if (waiting == 0) continue;
    if (waiting < threads)
      throw std::runtime_error(std::to_string(waiting) + " threads are at a barrier, not all");
    for (uint32_t i = 0; i < threads; ++i) machine.fibers[i].state = State::kReady;
  }
}

}  // namespace hisparse::simt::emulator
