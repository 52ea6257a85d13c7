type Members = {
  recorded_at?: string;
  stream_id: string;
  stream_version?: string;
  type?: string;
  workspace_id?: string;
  data?: string;
  metadata?: string;
};

/** An INSERT of events, one for each row of `from`. Each member is SQL. */
export function insertEventSql(members: Members, from = ''): string {
  const all = {
    event_id: 'gen_random_uuid()',
    workspace_id: "'ws_1'",
    stream_version: '1',
    type: "'test.happened'",
    schema_version: '1',
    data: "'{}'",
    metadata: "'{}'",
    recorded_at: "date_trunc('milliseconds', clock_timestamp())",
    ...members,
  };
  return `insert into event (${Object.keys(all).join(', ')}) select ${Object.values(all).join(', ')} ${from}`;
}
