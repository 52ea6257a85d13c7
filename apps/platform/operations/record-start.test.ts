import { expect, test } from 'vitest';
import { ApiConfig } from '../../api/config.ts';
import { WorkerConfig } from '../../worker/config.ts';
import { describeSettings } from './record-start.ts';

const secret = 'wpXqT7dGk2';
const environment = {
  DATABASE_URL: `postgres://user:${secret}@db/sluice`,
  SLUICE_MASTER_KEY: secret,
  SLUICE_BOOTSTRAP_KEY: secret,
  SLUICE_ALERT_WEBHOOK: `https://user:${secret}@example.com/${secret}`,
  SLUICE_ALERT_WEBHOOK_SECRET: `whsec_${secret.padEnd(40, 'A')}`,
  SLUICE_JWKS_URL: `https://${secret}@example.com/keys`,
  SLUICE_S3_ENDPOINT: `https://${secret}@s3.example.com`,
  SLUICE_PUBLIC_URL: `https://${secret}@example.com`,
  OTEL_EXPORTER_OTLP_ENDPOINT: `https://example.com/?key=${secret}`,
  SLUICE_EGRESS_ALLOW: '10.0.0.0/8',
  SLUICE_RETRY_MAX: '20s',
};

test.each([ApiConfig, WorkerConfig])(
  'the event of a start has the settings, and none that can contain a secret',
  (app) => {
    const settings = describeSettings(app.parse(environment));
    expect(JSON.stringify(settings)).not.toContain(secret);
    expect(settings).toMatchObject({
      DATABASE_URL: 'set',
      SLUICE_MASTER_KEY: 'set',
      SLUICE_ALERT_WEBHOOK_SECRET: 'set',
      SLUICE_EGRESS_ALLOW: '10.0.0.0/8',
      SLUICE_DB_POOL_MAX: 10,
      SLUICE_S3_PATH_STYLE: false,
    });
    expect(settings).not.toHaveProperty('SLUICE_BLOBS');
  },
);

test('durations are in milliseconds', () => {
  expect(describeSettings(WorkerConfig.parse(environment))).toMatchObject({ SLUICE_RETRY_MAX: 20_000 });
});
