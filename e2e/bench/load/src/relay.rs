//! A relay that copies bytes and looks at none: what a reading and a writing of
//! every byte costs at least.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::{Error, local};

/// Connections that are open at one time.
const MOST_CONNECTIONS: usize = 16_384;

/// Connects everything that comes in on `listener` to `target`, for ever.
pub async fn run(listener: TcpListener, target: SocketAddr) -> Result<(), Error> {
    let target = local(target)?;
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        if connections.len() < MOST_CONNECTIONS {
            connections.spawn(connect(client, target));
        }
    }
}

/// Either end may break off; the other one then sees its connection end.
async fn connect(mut client: TcpStream, target: SocketAddr) {
    let _either_way = async {
        let mut upstream = TcpStream::connect(target).await?;
        client.set_nodelay(true)?;
        upstream.set_nodelay(true)?;
        copy_bidirectional(&mut client, &mut upstream).await
    }
    .await;
}
