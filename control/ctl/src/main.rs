//! Entry point of ddpctl.

fn main() -> std::process::ExitCode {
    ctl::main()
}
