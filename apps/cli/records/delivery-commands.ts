import type { Command } from 'commander';
import { clientCommand, toCount, type ClientOptions } from '../server/client-command.ts';
import { connect } from '../server/connection.ts';
import { printObject, printRows } from '../terminal/output.ts';
import { formatTime } from '../terminal/quantities.ts';
import type { Column } from '../terminal/table.ts';

type Delivery = {
  id: string;
  event_type: string;
  data: { id: string };
  status: string;
  attempts: number;
  last_status_code: number | null;
  last_error: string | null;
  next_attempt_at: number | null;
};

const columns: readonly Column<Delivery>[] = [
  ['delivery', ({ id }) => id],
  ['event', ({ event_type: type }) => type],
  ['about', ({ data: { id } }) => id, { spare: 2 }],
  ['status', ({ status }) => status],
  ['attempts', ({ attempts }) => attempts, { right: true, spare: 3 }],
  ['answer', ({ last_status_code: code, last_error: error }) => code ?? error],
  ['next', ({ next_attempt_at: at }) => (at === null ? null : formatTime(at)), { spare: 1 }],
];

/** Adds `sluice webhooks deliveries|resend`. */
export function addDeliveryCommands(webhooks: Command, path: string): void {
  const at = (endpoint: string): string => `${path}/${encodeURIComponent(endpoint)}/deliveries`;

  clientCommand(webhooks, 'deliveries <id>', 'list the deliveries to an endpoint, newest first')
    .option('--status <status>', 'pending, succeeded or failed')
    .option('--limit <count>', 'at most this many', toCount({ min: 1, max: 100_000 }), 20)
    .action(async (id: string, options: ClientOptions & { status?: string; limit: number }) => {
      const client = await connect(options);
      printRows(await client.list<Delivery>(at(id), { status: options.status }, options.limit), columns, options);
    });

  clientCommand(webhooks, 'resend <id> <delivery>', 'send a delivery again').action(
    async (id: string, delivery: string, options: ClientOptions) => {
      const client = await connect(options);
      const path = `${at(id)}/${encodeURIComponent(delivery)}/resend`;
      printObject(await client.json<object>('POST', path, { json: {} }), options);
    },
  );
}
