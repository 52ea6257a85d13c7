import { sql } from 'kysely';
import type { Subscriber } from '#libs/event-log/subscriber.ts';

/** A subscriber whose table is wrong when any event is applied twice or not at all: it adds up. */
export const countingSubscriber: Subscriber = {
  name: 'counting',
  tables: ['counted' as never],
  async apply(tx, events) {
    for (const { streamId, streamVersion } of events) {
      await sql`
        insert into counted values (${streamId}, 1, ${streamVersion}, array[${streamVersion}]::int[])
        on conflict (stream_id) do update set events = counted.events + 1, sum = counted.sum + excluded.sum,
          versions = counted.versions || excluded.versions`.execute(tx);
    }
  },
};

export const createCounted = `
  create table counted (stream_id text primary key, events int not null, sum int not null, versions int[] not null)`;
