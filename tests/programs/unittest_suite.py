import io
import unittest
from unittest import mock


def fetch(url, opener):
    return opener(url).strip().upper()


class Tests(unittest.TestCase):
    def setUp(self):
        self.data = [3, 1, 2]

    def test_sorts(self):
        self.assertEqual(sorted(self.data), [1, 2, 3])
        self.assertListEqual(self.data, [3, 1, 2])

    def test_raises(self):
        with self.assertRaisesRegex(ValueError, "invalid literal"):
            int("x")

    def test_mock(self):
        opener = mock.Mock(return_value=" ok ")
        self.assertEqual(fetch("http://x", opener), "OK")
        opener.assert_called_once_with("http://x")

    def test_patch(self):
        with mock.patch("os.getcwd", return_value="/fake"):
            import os
            self.assertEqual(os.getcwd(), "/fake")

    def test_subtests(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)

    @unittest.skip("later")
    def test_skipped(self):
        self.fail()

    @unittest.expectedFailure
    def test_expected(self):
        self.assertTrue(False)

    def test_fails(self):
        self.assertEqual({"a": 1}, {"a": 2})


stream = io.StringIO()
suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
result = unittest.TextTestRunner(stream=stream, verbosity=0).run(suite)
print(result.testsRun, len(result.failures), len(result.errors), len(result.skipped), len(result.expectedFailures))
print(sorted(case.id().split(".")[-1] for case, _ in result.failures))
print(stream.getvalue().splitlines()[-1])
magic = mock.MagicMock()
magic.__len__.return_value = 4
magic.method.side_effect = [1, KeyError("k")]
print(len(magic), magic.method(), mock.call(1, a=2))
try:
    magic.method()
except KeyError as error:
    print("KeyError", error)
