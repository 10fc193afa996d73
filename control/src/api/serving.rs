//! Serving HTTP until it is stopped: what the API's server and that for observers have in common.

use std::io;
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::sync::watch;

/// How long requests may go on after the server was stopped.
const GRACE: Duration = Duration::from_secs(1);

/// Serves until `closing` is true or its sender is gone, then for [`GRACE`] at most.
/// Requests have the `ConnectInfo` of their connection.
pub(super) async fn serve<L, C>(
    listener: L,
    router: Router,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()>
where
    L: Listener<Addr: std::fmt::Debug>,
    C: for<'c> Connected<IncomingStream<'c, L>>,
{
    let mut also_closing = closing.clone();
    let server = axum::serve(listener, router.into_make_service_with_connect_info::<C>())
        .with_graceful_shutdown(async move {
            // An error means that the handle is gone, which ends the server too.
            drop(also_closing.wait_for(|&closing| closing).await);
        });
    let deadline = async move {
        drop(closing.wait_for(|&closing| closing).await);
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        result = server.into_future() => result,
        () = deadline => Ok(()),
    }
}
