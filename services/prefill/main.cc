#include "rpc/library.h"
#include "services/worker/worker_main.h"

int main(int argc, char** argv) {
  sluice::rpc::ExitProcess(sluice::services::WorkerMain(argc, argv, "prefill"));
}
