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

// The threads of one warp, in the order in which they get their turns.
struct Warp {
  uint32_t begin, end;
  std::vector<uint32_t> order;
};

// A warp all of whose threads stand at a ballot gets its mask, whatever other warps do.
bool finish_ballot(const Warp& warp) {
  if (count(warp.begin, warp.end, State::kAtBallot) < warp.end - warp.begin) return false;
  uint64_t mask = 0;
  for (uint32_t i = warp.begin; i < warp.end; ++i)
    mask |= uint64_t{machine.fibers[i].flag} << (i - warp.begin);
  for (uint32_t i = warp.begin; i < warp.end; ++i) {
    machine.fibers[i].mask = mask;
    machine.fibers[i].state = State::kReady;
  }
  return true;
}

// Gives a warp at most so many turns; returns how many it took before all its threads waited.
uint32_t run_warp(const Warp& warp, uint32_t turns) {
  uint32_t taken = 0;
  do {
    for (const uint32_t i : warp.order) {
      if (machine.fibers[i].state != State::kReady) continue;
      if (taken == turns) return taken;
      ++taken;
      machine.current = i;
      swapcontext(&machine.scheduler, &machine.fibers[i].context);
    }
  } while (finish_ballot(warp));
  return taken;
}

// Every thread waits: either all of them at the barrier, or they have diverged.
void finish_barrier(uint32_t threads) {
  for (uint32_t i = 0; i < threads; ++i)
    if (machine.fibers[i].state == State::kAtBallot)
      throw std::runtime_error("thread " + std::to_string(i) + " and its warp: not all are at the ballot");
  const size_t waiting = count(0, threads, State::kAtBarrier);
  if (waiting < threads)
    throw std::runtime_error(std::to_string(waiting) + " threads are at a barrier, not all");
  for (uint32_t i = 0; i < threads; ++i) machine.fibers[i].state = State::kReady;
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
  std::vector<Warp> warps;
  for (uint32_t begin = 0; begin < threads; begin += kWarp) {
    Warp& warp = warps.emplace_back(Warp{begin, std::min(threads, begin + kWarp), {}});
    for (uint32_t i = begin; i < warp.end; ++i) warp.order.push_back(i);
  }
  std::mt19937 random(launch.seed);
  while (count(0, threads, State::kDone) < threads) {
    uint32_t taken = 0;
    if (launch.seed != 0) std::shuffle(warps.begin(), warps.end(), random);
    for (Warp& warp : warps) {
      // A warp may get past several ballots while another has not read what was there before.
      const uint32_t turns = launch.seed != 0 ? 1 + random() % (4 * kWarp) : kWarp;
      if (launch.seed != 0) std::shuffle(warp.order.begin(), warp.order.end(), random);
      taken += run_warp(warp, turns);
    }
    if (taken == 0 && count(0, threads, State::kDone) < threads) finish_barrier(threads);
  }
}

}  // namespace hisparse::simt::emulator
