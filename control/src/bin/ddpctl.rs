//! Entry point of ddpctl.

fn main() -> std::process::ExitCode {
    control::ctl::main()
}
