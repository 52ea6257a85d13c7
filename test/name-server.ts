import { createSocket } from 'node:dgram';
import { once } from 'node:events';

/** What a name has: addresses and a time to live in seconds, or how its queries fail. */
export type NameRecord = { addresses: readonly string[]; ttl?: number } | 'hang' | 'servfail';

export type NameServer = {
  /** `address:port`. */
  address: string;
  /** Names without a record do not exist. */
  records: Map<string, NameRecord>;
  /** The IPv4 queries that arrived, in order. */
  questions: () => string[];
  stop: () => Promise<void>;
};

const typeA = 1;
const typeAaaa = 28;

/** A name server over UDP that answers from a table, for IPv4 only (RFC 1035 4.1). */
export async function startNameServer(records: Record<string, NameRecord> = {}): Promise<NameServer> {
  const table = new Map(Object.entries(records));
  const questions: string[] = [];
  const socket = createSocket('udp4');
  socket.on('message', (message, from) => {
    const { name, type, end } = readQuestion(message);
    if (type === typeA) questions.push(name);
    const record = table.get(name);
    if (record === 'hang') return;
    const addresses = typeof record === 'object' && type === typeA ? record.addresses : [];
    const ttl = typeof record === 'object' ? (record.ttl ?? 60) : 0;
    const status = record === 'servfail' ? 2 : record === undefined ? 3 : 0;
    if (type !== typeA && type !== typeAaaa) throw new Error(`nobody asks for records of type ${type}`);
    const head = Buffer.alloc(12);
    message.copy(head, 0, 0, 2);
    head.writeUInt16BE(0x8180 + status, 2); // an answer, recursion available
    head.writeUInt16BE(1, 4);
    head.writeUInt16BE(addresses.length, 6);
    const answers = addresses.map((address) => {
      const answer = Buffer.alloc(16);
      answer.writeUInt16BE(0xc00c, 0); // the name in the query
      answer.writeUInt16BE(typeA, 2);
      answer.writeUInt16BE(1, 4);
      answer.writeUInt32BE(ttl, 6);
      answer.writeUInt16BE(4, 10);
      answer.set(address.split('.').map(Number), 12);
      return answer;
    });
    socket.send(Buffer.concat([head, message.subarray(12, end), ...answers]), from.port, from.address);
  });
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  return {
    address: `127.0.0.1:${socket.address().port}`,
    records: table,
    questions: () => [...questions],
    stop: async () => {
      socket.close();
      await once(socket, 'close');
    },
  };
}

function readQuestion(message: Buffer): { name: string; type: number; end: number } {
  const labels: string[] = [];
  let at = 12;
  for (let length = message[at] ?? 0; length > 0; length = message[at] ?? 0) {
    labels.push(message.toString('latin1', at + 1, at + 1 + length));
    at += 1 + length;
  }
  // c-ares may mix the case of letters, to make answers hard to forge.
  return { name: labels.join('.').toLowerCase(), type: message.readUInt16BE(at + 1), end: at + 5 };
}
