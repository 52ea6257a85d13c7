import { BlockList } from 'node:net';
import { ConfigurationError } from '#libs/kernel/read-env.ts';
import { addNetwork, inNetworks } from './forbidden-addresses.ts';

/** The operator's exceptions from the egress rules. */
export type EgressAllow = {
  /** Whether the URL contains exactly this host and port. Any address that it resolves to is allowed in that case. */
  allowsHost(hostname: string, port: number): boolean;
  /** Whether the address that a name resolved to, or that the URL contains, is in an allowed network. */
  allowsAddress(address: string, port: number): boolean;
};

/**
 * Reads `SLUICE_EGRESS_ALLOW`: entries separated by commas or spaces, each `host:port` (`127.0.0.1:8001`, `vllm:8000`,
 * `[::1]:8001`) or a network with an optional port (`10.0.0.0/8`, `10.1.0.0/16:443`, `[fd00::/8]:443`). Throws
 * ConfigurationError with the entry that is neither.
 */
export function parseEgressAllow(text: string): EgressAllow {
  const hosts = new Set<string>();
  const networks: { list: BlockList; port: number | null }[] = [];
  for (const entry of text.split(/[\s,]+/).filter((part) => part !== '')) {
    const network = /^\[?([0-9a-f.:]+\/\d+)\]?(?::(\d+))?$/i.exec(entry);
    const host = /^(\[[0-9a-f:.]+\]|[^\s/@:[\]]+):(\d+)$/i.exec(entry);
    try {
      if (network) networks.push({ list: networkOf(network[1] ?? ''), port: network[2] ? portOf(network[2]) : null });
      else if (host) hosts.add(`${hostnameOf(host[1] ?? '')} ${portOf(host[2] ?? '')}`);
      else throw new RangeError('neither form');
    } catch (error) {
      throw new ConfigurationError(
        `SLUICE_EGRESS_ALLOW: the entry "${entry}" is invalid. Write host:port, address/bits or address/bits:port.`,
        { cause: error },
      );
    }
  }
  return {
    allowsHost: (hostname, port) => hosts.has(`${hostname} ${port}`),
    allowsAddress: (address, port) =>
      networks.some((network) => (network.port === null || network.port === port) && inNetworks(network.list, address)),
  };
}

function networkOf(text: string): BlockList {
  const list = new BlockList();
  addNetwork(list, text);
  return list;
}

/** Spelled as in a URL, so that it can be compared with one. */
function hostnameOf(text: string): string {
  return new URL(`http://${text}`).hostname;
}

function portOf(text: string): number {
  const port = Number(text);
  if (!(port >= 1 && port <= 65_535)) throw new RangeError(`${text} is not a port`);
  return port;
}
