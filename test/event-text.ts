type Members = {
  recorded_at?: string;
  stream_id: string;
  stream_version?: string;
  type?: string;
  workspace_id?: string;
  data?: string;
};

/** SQL for the text of an event, of which `insert into event (canonical)` makes a row. Each member is SQL, too. */
export function eventTextSql(members: Members): string {
  const all = {
    form: '1',
    event_id: 'gen_random_uuid()',
    workspace_id: "'ws_1'",
    stream_version: '1',
    type: "'test.happened'",
    schema_version: '1',
    data: "'{}'::jsonb",
    metadata: "'{}'::jsonb",
    recorded_at: "date_trunc('milliseconds', clock_timestamp())",
    ...members,
  };
  return `jsonb_build_object(${Object.entries(all)
    .map(([name, value]) => `'${name}', ${value}`)
    .join(', ')})::text`;
}
