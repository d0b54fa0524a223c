#include "resolver/simt/emulator.h"

#include <pthread.h>

#include <thread>
#include <vector>

namespace hisparse::simt::emulator {
namespace {

class Barrier {
 public:
  explicit Barrier(uint32_t threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  void wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};

// A ballot makes the lanes of a warp wait for each other, but orders nothing else for the block.
struct Warp {
  Barrier barrier{kWarp};
  bool flags[kWarp] = {};
};

struct Machine {
  explicit Machine(uint32_t threads) : block(threads), warps(threads / kWarp) {}
  Barrier block;
  std::vector<Warp> warps;
};

Machine* machine = nullptr;
uint32_t number_of_threads = 0;
thread_local uint32_t me = 0;

}  // namespace

uint32_t thread() { return me; }
uint32_t threads() { return number_of_threads; }
void barrier() { machine->block.wait(); }

uint64_t ballot(bool flag) {
  Warp& warp = machine->warps[me / kWarp];
  warp.flags[me % kWarp] = flag;
  warp.barrier.wait();
  uint64_t mask = 0;
  for (uint32_t lane = 0; lane < kWarp; ++lane) mask |= uint64_t{warp.flags[lane]} << lane;
  warp.barrier.wait();
  return mask;
}

void run_block(const Launch& launch, const std::function<void()>& kernel) {
  Machine here(launch.threads);
  machine = &here;
  number_of_threads = launch.threads;
  std::vector<std::thread> all;
  for (uint32_t i = 0; i < launch.threads; ++i)
    all.emplace_back([i, &kernel] {
      me = i;
      kernel();
    });
  for (auto& each : all) each.join();
}

}  // namespace hisparse::simt::emulator
