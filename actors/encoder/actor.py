"""The encoder's shell: decodes images, videos and sounds in processes of their own, and encodes each content once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from pageant.actors.encoder.cache import ImageCache
from pageant.actors.encoder.core import ImageEncoder, Pixels, digest_of, digest_of_video
from pageant.actors.encoder.decoding import decoded
from pageant.actors.encoder.hearing import AudioEncoder, Hearing
from pageant.actors.runtime import Actor, ActorOptions, receives
from pageant.actors.runtime.isolation import IsolatedLimits, Isolation
from pageant.actors.runtime.sizes import parse_bytes
from pageant.models.audio.families import read_audio
from pageant.models.audio.processing import AudioRefused
from pageant.models.checkpoint import Checkpoint
from pageant.models.vision.isolated import (
    OPENER,
    VIDEO_OPENER,
    argument_of,
    frames_of,
    pixels_of,
    video_request,
)
from pageant.models.vision.processing import ImageRefused
from pageant.models.vision.video import VIDEO_PIXELS_MAX, VideoFrames, VideoRefused
from pageant.protocol.embedding import NAME_BYTES
from pageant.protocol.encoding import (
    Encoded,
    EncodedImage,
    EncodeImages,
    EncoderStatistics,
    GetEncoderStatistics,
    ImagePart,
    NotEncoded,
    VideoPart,
)
from pageant.protocol.hearing import AudioMeasured, EncodeAudio, EncodedAudio, MeasureAudio
from pageant.protocol.roles import ENCODER

_DECODE_SECONDS = 20.0
_DECODE_BYTES = 1 << 30
_VIDEO_SECONDS = 90.0
_VIDEO_BYTES = 2 << 30
_VIDEO_ANSWER_BYTES = 3 * VIDEO_PIXELS_MAX + (1 << 20)
_IN_WORK_MAX = 2
"""Images or sounds that are decoded or encoded at a time: one in each of the two."""


T = TypeVar("T")
D = TypeVar("D")  # what a file was decoded to


def _dtype(name: str) -> str:
    return {"half": "float16", "float": "float32"}.get(name, name)


class Encoder(Actor):
    """Turns images and videos into what stands for them in prompts, or sounds into what texts attend to.

    An image that was encoded before is found by its pixels, whatever file they come in, and a video by its frames.
    Images wait for each other in the order in which they came, and so do videos, one of which is in work at a time.
    No more than a few are in memory decoded.
    """

    role = ENCODER
    features = ENCODER.features
    heavy = True

    class Options(ActorOptions, frozen=True, kw_only=True):
        """Options of an encoder.

        Attributes:
            model: the checkpoint's folder.
            device: that the tower computes on.
            dtype: that it computes in; `auto` is the checkpoint's.
            encoder_threads: threads of the tower on a CPU; None is as many as there are cores.
            image_cache_memory: bytes, such as `256MiB`, for images, videos and sounds that may be asked for
                again.
        """

        model: str
        device: str = "cpu"
        dtype: str = "auto"
        encoder_threads: int | None = None
        image_cache_memory: str | int = "256MiB"

        def __post_init__(self) -> None:
            size = self.image_cache_memory
            try:
                wanted = parse_bytes(size)
            except ValueError as error:
                raise ValueError(f"image_cache_memory: {error}") from None
            if wanted < 0:
                raise ValueError(f"image_cache_memory is {size!r}; expected a size such as 256MiB")
            if self.encoder_threads is not None and self.encoder_threads < 1:
                raise ValueError(f"encoder_threads is {self.encoder_threads}; expected at least 1")

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._cache = ImageCache(parse_bytes(options.image_cache_memory))
        self._turns = asyncio.Semaphore(_IN_WORK_MAX)
        self._video_turn = asyncio.Semaphore(1)
        # Images and videos that are being encoded, by the digests of their pixels: others with the same wait for them.
        self._in_work: dict[bytes, asyncio.Future[EncodedImage]] = {}
        self._encoded = self._cached = self._decoded = self._refused = self._waiting = 0
        self._isolation: Isolation | None = None
        self._video_isolation: Isolation | None = None
        self._hearing: Hearing | None = None

    async def on_start(self) -> None:
        if await self.offload(self._hears):
            budget = parse_bytes(self.options.image_cache_memory)
            self._hearing = Hearing(self, await self.offload(self.load_audio), self._turns, budget)
            return
        self._encoder = await self.offload(self.load)
        limits = IsolatedLimits(seconds=_DECODE_SECONDS, memory_bytes=_DECODE_BYTES)
        spec = self._encoder.spec
        self._isolation = Isolation(OPENER, argument_of(spec.processing), limits)
        if spec.video is not None:
            limits = IsolatedLimits(
                seconds=_VIDEO_SECONDS, memory_bytes=_VIDEO_BYTES, answer_bytes=_VIDEO_ANSWER_BYTES
            )
            self._video_isolation = Isolation(VIDEO_OPENER, argument_of(spec.video.processing), limits)

    def load(self) -> ImageEncoder:
        """Return what encodes images. Blocks."""
        options = self.options
        return ImageEncoder(
            Path(options.model), _dtype(options.dtype), options.device, options.encoder_threads
        )

    def _hears(self) -> bool:
        return read_audio(Checkpoint(Path(self.options.model))) is not None

    def load_audio(self) -> AudioEncoder:
        """Return what encodes sounds. Blocks."""
        options = self.options
        return AudioEncoder(
            Path(options.model), _dtype(options.dtype), options.device, options.encoder_threads
        )

    async def on_stop(self) -> None:
        if self._hearing is not None:
            await self.offload_beside("decoding", self._hearing.close)
        for isolation in (self._isolation, self._video_isolation):
            if isolation is not None:
                await self.offload_beside("decoding", isolation.close)

    @receives(concurrent=True)
    async def encode(self, request: EncodeImages) -> Encoded | NotEncoded:
        """Return the images and videos of a request, or which of them is at fault."""
        found = []
        for index, image in enumerate(request.images):
            self._waiting += 1
            try:
                if isinstance(image, VideoPart):
                    found.append(await self._encode_video(image, request.tokens_max))
                else:
                    found.append(await self._encode(image, request.tokens_max))
            except ImageRefused as error:
                self._refused += 1
                return NotEncoded(index=index, reason=str(error))
            finally:
                self._waiting -= 1
        return Encoded(images=tuple(found))

    @receives(concurrent=True)
    async def measure(self, request: MeasureAudio) -> AudioMeasured | NotEncoded:
        """Return how long a sound is, or why it is none."""
        hearing = self._heard()
        return await self._answered(hearing.measure(request.audio))

    @receives(concurrent=True)
    async def encode_audio(self, request: EncodeAudio) -> EncodedAudio | NotEncoded:
        """Return what is made of a window of a sound, or why it is none."""
        hearing = self._heard()
        return await self._answered(hearing.encode(request.audio))

    def _heard(self) -> Hearing:
        if self._hearing is None:
            raise AudioRefused("the model takes no sounds; expected images")
        return self._hearing

    async def _answered(self, answer: Coroutine[Any, Any, T]) -> T | NotEncoded:
        """Return an answer about one sound, or why it is at fault."""
        self._waiting += 1
        try:
            return await answer
        except AudioRefused as error:
            self._refused += 1
            return NotEncoded(index=0, reason=str(error))
        finally:
            self._waiting -= 1

    async def _encode(self, image: ImagePart, tokens_max: int | None) -> EncodedImage:
        """Return one image; raises `ImageRefused`."""
        if image.data is None:
            raise ImageRefused("the image has no data; expected a file")
        data = image.data.tobytes()
        file = blake2b(data, digest_size=NAME_BYTES).digest()
        return await self._encode_file(
            file,
            self._turns,
            lambda: self._decode(data),
            digest_of,
            lambda pixels, digest: self._encoder.encode(pixels, digest, tokens_max),
        )

    async def _encode_video(self, video: VideoPart, tokens_max: int | None) -> EncodedImage:
        """Return one video; raises `VideoRefused`."""
        if video.data is None:
            raise VideoRefused("the video has no data; expected a file, or frames")
        sizes = None if video.sizes is None else tuple(video.sizes.tolist())
        asked = video_request(video.data.tobytes(), sizes, video.fps)
        file = blake2b(asked, digest_size=NAME_BYTES, person=b"pageant-video").digest()
        return await self._encode_file(
            file,
            self._video_turn,
            lambda: self._decode_video(asked),
            digest_of_video,
            lambda frames, digest: self._encoder.encode_video(frames, digest, tokens_max),
        )

    async def _encode_file(
        self,
        file: bytes,
        turns: asyncio.Semaphore,
        decode: Callable[[], D],
        digest_of: Callable[[D], bytes],
        encode: Callable[[D, bytes], EncodedImage],
    ) -> EncodedImage:
        """Return a file encoded, by its digest `file`. It is decoded in one of `turns`, unless it is known.

        Args:
            encode: of what was decoded, and its digest.
        """
        if (known := self._cache.of_file(file)) is not None:
            self._cached += 1
            return known
        async with turns:
            pixels = await self.offload_beside("decoding", decode)
            digest = await self.offload_beside("decoding", digest_of, pixels)
            return await self._encode_once(file, digest, lambda: encode(pixels, digest))

    async def _encode_once(
        self, file: bytes, digest: bytes, encode: Callable[[], EncodedImage]
    ) -> EncodedImage:
        """Return what was decoded encoded, by the digests of its file and of its pixels."""
        self._decoded += 1
        self._cache.link(file, digest)
        known = self._cache.of_pixels(digest)
        while known is None and (under_way := self._in_work.get(digest)) is not None:
            await asyncio.wait([under_way])
            # Where the request that had it in work was cancelled, one of those that waited encodes it.
            known = None if under_way.cancelled() else under_way.result()
        if known is not None:
            self._cached += 1
            return known
        return await self._encode_new(digest, encode)

    async def _encode_new(self, digest: bytes, encode: Callable[[], EncodedImage]) -> EncodedImage:
        """Encode pixels that nobody else has in work."""
        done: asyncio.Future[EncodedImage] = asyncio.get_running_loop().create_future()
        self._in_work[digest] = done
        try:
            found = await self.offload(encode)
        except asyncio.CancelledError:
            done.cancel()
            raise
        except BaseException as error:
            done.set_exception(error)
            done.exception()  # nobody may be waiting
            raise
        finally:
            del self._in_work[digest]
        done.set_result(found)
        self._encoded += 1
        self._cache.add(digest, found)
        return found

    def _decode(self, data: bytes) -> Pixels:
        """Return the pixels of an encoded image, uint8 [height, width, 3]. Blocks."""
        assert self._isolation is not None, "the actor is up"
        return decoded(self._isolation, data, pixels_of, ImageRefused, "image")

    def _decode_video(self, asked: bytes) -> VideoFrames:
        """Return the frames of a video, as `video_request` asks for them. Blocks."""
        if self._video_isolation is None:
            raise VideoRefused("the model takes no videos; expected an image")
        return decoded(self._video_isolation, asked, frames_of, VideoRefused, "video")

    @receives
    def statistics(self, request: GetEncoderStatistics) -> EncoderStatistics:
        """Return the counters of images and videos, or of sounds, so far."""
        hearing = self._hearing
        return EncoderStatistics(
            encoded=self._encoded if hearing is None else hearing.encoded,
            cached=self._cached if hearing is None else hearing.cached,
            decoded=self._decoded if hearing is None else hearing.decoded,
            refused=self._refused,
            evicted=self._cache.evicted if hearing is None else hearing.evicted,
            cache_bytes=self._cache.num_bytes if hearing is None else hearing.num_bytes,
            waiting=self._waiting,
        )
