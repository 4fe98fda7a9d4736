#include "twinkle/cli/program.h"

int main(int argc, char** argv) { return twinkle::cli::run_program(argc, argv, TWINKLE_VERSION); }
