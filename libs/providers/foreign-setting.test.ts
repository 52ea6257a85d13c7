import { expect, test } from 'vitest';
import { virtualKeySecretNames, virtualKeySettingNames } from '#libs/contracts/virtual-keys.ts';
import { findForeignSetting } from './foreign-setting.ts';
import { providerPlaces } from './provider-places.ts';
import { findProvider } from './registry.ts';

test('what a provider reads is its own, with the settings of Claude in the clouds that serve it', () => {
  for (const [provider, { settings }] of Object.entries(providerPlaces)) {
    const names = settings.map((setting) => setting.replace('?', ''));
    expect({ provider, foreign: findForeignSetting(provider, names) }).toEqual({ provider, foreign: null });
  }
  for (const cloud of ['bedrock', 'vertex', 'azure']) expect(findForeignSetting(cloud, ['anthropic_beta'])).toBeNull();
  expect(findForeignSetting('simulator', ['openai_organization'])).toBeNull();
});

test('a setting of another provider is found by name, and whose it is is told', () => {
  expect(findForeignSetting('openai', ['openai_project', 'aws_region', 'azure_ad_token'])).toEqual({
    name: 'aws_region',
    providers: ['bedrock'],
  });
  expect(findForeignSetting('groq', ['openai_organization'])).toMatchObject({ name: 'openai_organization' });
});

test('every setting that a virtual key can have belongs to somebody that exists', () => {
  for (const name of [...virtualKeySettingNames, ...virtualKeySecretNames]) {
    const providers = findForeignSetting('nobody', [name])?.providers ?? [];
    expect({ name, known: providers.some((provider) => findProvider(provider)?.id === provider) }).toEqual({
      name,
      known: true,
    });
  }
});
